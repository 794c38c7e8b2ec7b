"""The manifests that we ship fit Kubernetes' own published schemas, unknown fields refused."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[3] / "deploy/kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_object_of_a_manifest_fits_its_schema(file: Path) -> None:
    things = list(yaml.safe_load_all(file.read_text()))
    assert things
    for thing in things:
        kubernetes_validate.validate(thing, "1.37", strict=True)


def test_the_deployment_runs_as_the_account_that_has_the_rights() -> None:
    things = list(yaml.safe_load_all((FOLDER / "scheduler.yaml").read_text()))
    (deployment,) = (one for one in things if one["kind"] == "Deployment")
    bound = {
        (subject["namespace"], subject["name"])
        for one in yaml.safe_load_all((FOLDER / "rbac.yaml").read_text())
        for subject in one.get("subjects", ())
    }
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    assert bound == {(deployment["metadata"]["namespace"], account)}


def test_no_right_to_delete_nodes_or_pods_or_to_read_secrets_is_given() -> None:
    rules = [
        (resource, verb)
        for one in yaml.safe_load_all((FOLDER / "rbac.yaml").read_text())
        for rule in one.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert {resource for resource, verb in rules if verb == "delete"} == {"devicetaintrules"}
    assert {"*", "secrets"} & {part for rule in rules for part in rule} == set()
