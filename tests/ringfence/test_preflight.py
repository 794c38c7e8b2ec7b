"""`ringfence preflight`: launch scripts as people write them, and what is wrong with them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ringfence.cli.preflight import preflight
from ringfence.preflight import CHECKS, Finding, LaunchError, Severity, examine, read
from ringfence.preflight.launch import Launch

#: What no check complains about.
SOUND = """\
#!/bin/bash
#SBATCH --nodes=17
#SBATCH --no-kill
#SBATCH --requeue --open-mode=append
export NCCL_DEBUG=WARN TORCH_NCCL_TRACE_BUFFER_SIZE=2000
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
srun --no-kill --kill-on-bad-exit=0 torchrun \\
    --nnodes=14:17 --nproc-per-node=8 --max-restarts=20 \\
    --rdzv-backend=c10d --rdzv-endpoint=svc-7.example:29400 --rdzv-id=$SLURM_JOB_ID \\
    --rdzv-conf=is_host=0,last_call_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=3 \\
    train.py --save-interval 120 --save s3://ckpt/run-9 --load s3://ckpt/run-9 \\
    --distributed-timeout-minutes 10
"""


def script(folder: Path, text: str, name: str = "launch.sh") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def found(folder: Path, text: str, *, step_s: float | None = 2.0) -> list[Finding]:
    return examine(read([script(folder, text)]), step_s=step_s)


def of(findings: list[Finding], check: str) -> list[Finding]:
    return [one for one in findings if one.check == check]


def test_a_sound_script_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, SOUND) == []


#: One change of the sound script, and the one finding that it makes: check, severity, line.
CHANGES = {
    "a fixed number of nodes": ("--nnodes=14:17", "--nnodes=17", "elastic-range", "error", 8),
    "a range without room": ("--nnodes=14:17", "--nnodes=17:17", "elastic-range", "error", 8),
    "no restarts": ("--max-restarts=20 ", "", "max-restarts", "error", 8),
    "none at all": ("--max-restarts=20", "--max-restarts=0", "max-restarts", "error", 8),
    "too few": ("--max-restarts=20", "--max_restarts 1", "max-restarts", "warning", 8),
    "a static rendezvous": ("=c10d", "=static", "rendezvous", "error", 9),
    "the store on a node of the job": (
        "svc-7.example:29400",
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29400",
        "rendezvous",
        "warning",
        9,
    ),
    "the shared store left on": (
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=0",
        "shared-store",
        "error",
        6,
    ),
    "the default last call": ("last_call_timeout=5,", "", "last-call", "warning", 10),
    "Slurm ends the job": ("#SBATCH --no-kill\n", "\n", "slurm-node-failure", "error", 2),
    "srun ends the agents": (
        "--kill-on-bad-exit=0",
        "--kill-on-bad-exit",
        "slurm-node-failure",
        "error",
        7,
    ),
    "no requeueing": ("--requeue --open-mode=append", "--time=9", "slurm-node-failure", "note", 2),
    "a checkpoint each half hour": (
        "--save-interval 120",
        "--save-interval=900",
        "checkpoint-interval",
        "error",
        11,
    ),
    "no checkpoint": ("--save-interval 120", "", "checkpoint-interval", "warning", None),
    "a checkpoint an epoch": (
        "--save-interval 120",
        "--save-steps epoch",
        "checkpoint-interval",
        "error",
        11,
    ),
    "no resume": ("--load s3://ckpt/run-9", "", "resume", "error", 11),
    "another place to resume from": (
        "--load s3://ckpt/run-9",
        "--load s3://old",
        "resume",
        "error",
        11,
    ),
    "a node's own folder": (
        "--save s3://ckpt/run-9 --load s3://ckpt/run-9",
        "--save /dev/shm/c --load /dev/shm/c",
        "shared-storage",
        "error",
        11,
    ),
    "an hour's timeout": ("minutes 10", "minutes 60", "collective-timeout", "warning", 12),
    "a minute's timeout": ("minutes 10", "minutes 1", "collective-timeout", "warning", 12),
    "no error handling": (
        "NCCL_DEBUG=WARN",
        "NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=0",
        "error-handling",
        "error",
        5,
    ),
    "blocking waits": (
        "NCCL_DEBUG=WARN",
        "NCCL_DEBUG=WARN TORCH_NCCL_BLOCKING_WAIT=1",
        "error-handling",
        "warning",
        5,
    ),
    "an InfiniBand timeout of minutes": (
        "NCCL_DEBUG=WARN",
        "NCCL_DEBUG=WARN NCCL_IB_TIMEOUT=24",
        "ib-timeout",
        "warning",
        5,
    ),
    "an InfiniBand timeout for ever": (
        "NCCL_DEBUG=WARN",
        "NCCL_DEBUG=WARN NCCL_IB_TIMEOUT=0",
        "ib-timeout",
        "error",
        5,
    ),
    "a variable that does not exist": (
        "NCCL_DEBUG=WARN",
        "NCCL_DEBUG=WARN NCCL_SOCKET_TIMEOUT=600000",
        "no-such-variable",
        "warning",
        5,
    ),
    "a misspelt variable": (
        "NCCL_DEBUG=WARN",
        "NCCL_DEBUG=WARN NCCL_IB_HCAS=mlx5_0",
        "no-such-variable",
        "note",
        5,
    ),
    "NCCL says nothing": ("NCCL_DEBUG=WARN ", "", "evidence", "warning", None),
    "no flight recorder": ("TORCH_NCCL_TRACE_BUFFER_SIZE=2000", "", "evidence", "warning", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_fault_is_found_where_it_stands(tmp_path: Path, change: str) -> None:
    old, new, check, severity, line = CHANGES[change]
    assert old in SOUND
    findings = found(tmp_path, SOUND.replace(old, new))
    assert [(one.check, one.severity) for one in findings] == [(check, Severity(severity))]
    assert findings[0].line == line


def test_every_check_has_a_case_that_fires() -> None:
    assert {check for _, _, check, _, _ in CHANGES.values()} == set(CHECKS)


def test_the_infiniband_timeout_is_told_in_seconds(tmp_path: Path) -> None:
    # 4.096 us * 2^22 = 17.18 s; seven tries of it are 120.3 s.
    (note,) = of(found(tmp_path, SOUND.replace("=WARN", "=WARN NCCL_IB_TIMEOUT=22")), "ib-timeout")
    assert note.severity is Severity.NOTE
    assert "17.2 s a try, not 22 s; with 7 tries 2.0 minutes" in note.what


def test_steps_are_judged_only_when_their_duration_is_known(tmp_path: Path) -> None:
    (note,) = of(found(tmp_path, SOUND, step_s=None), "checkpoint-interval")
    assert (note.severity, "--step-seconds" in note.fix) == (Severity.NOTE, True)
    (late,) = of(found(tmp_path, SOUND, step_s=5.0), "checkpoint-interval")
    assert "every 10.0 minutes at 5 s a step" in late.what
    assert "--save-interval=60" in late.fix


# --- How scripts are written ----------------------------------------------------------------------


def flags(folder: Path, text: str) -> Launch:
    return read([script(folder, text)])


def test_arrays_strings_defaults_and_substitutions_are_filled_in(tmp_path: Path) -> None:
    launch = flags(
        tmp_path,
        """
NODES=${SLURM_NNODES:-6}
head=$(hostname -s)   # the first
ARGS=(
    --nnodes $NODES
    --rdzv_endpoint "$head:2900"  # its own
)
ARGS+=(--max-restarts=4)
GPT="
  --save-interval 50 \\
  --save '/lustre/a b'
"
LOGLEVEL=INFO python3 -m torch.distributed.run "${ARGS[@]}" train.py $GPT --fp16 2>&1 | tee log
""",
    )
    assert launch.launcher == "torchrun"
    assert {name: said.value for name, said in launch.flags.items()} == {
        "nnodes": "6",
        "rdzv-endpoint": "$(hostname -s):2900",
        "max-restarts": "4",
    }
    assert launch.flags["rdzv-endpoint"].line == 6
    assert launch.trainer["save-interval"].value == "50"
    assert launch.trainer["save"].value == "/lustre/a b"
    assert "fp16" in launch.trainer
    assert launch.env["LOGLEVEL"].value == "INFO"


def test_what_stands_in_comments_is_not_read(tmp_path: Path) -> None:
    launch = flags(
        tmp_path,
        "# torchrun --nnodes=2 x.py\ntorchrun --standalone train.py # --save-interval 9\n",
    )
    assert set(launch.flags) == {"standalone"}
    assert launch.trainer == {}


def test_a_config_written_by_the_script_itself_is_read(tmp_path: Path) -> None:
    launch = flags(
        tmp_path,
        """cat > ds.json <<EOT
{"elasticity": {"enabled": true, "max_train_batch_size": 2000},
 "bf16": {"enabled": true}}
EOT
deepspeed --elastic_training --min_elastic_nodes 3 train.py --deepspeed_config ds.json
""",
    )
    assert launch.config["elasticity.enabled"].value == "true"
    assert launch.flags["min-elastic-nodes"].value == "3"
    assert of(examine(launch), "elastic-range") == []


def test_deepspeed_without_elasticity_is_an_error(tmp_path: Path) -> None:
    config = script(tmp_path, '{"train_batch_size": 64}', "ds.json")
    start = script(tmp_path, "deepspeed --num_nodes 4 train.py --deepspeed_config ds.json\n")
    (error,) = of(examine(read([config, start])), "elastic-range")
    assert error.severity is Severity.ERROR
    assert "elasticity.enabled" in error.what


def test_ranks_started_by_srun_alone_need_requeueing(tmp_path: Path) -> None:
    text = "#SBATCH -N 4\nsrun --label python train.py --save-every 10\n"
    findings = found(tmp_path, text)
    assert of(findings, "elastic-range")[0].severity is Severity.WARNING
    # Slurm's own default, JobRequeue=1, requeues it: only a refusal is surely wrong.
    assert of(findings, "slurm-node-failure")[0].severity is Severity.WARNING
    (never,) = of(found(tmp_path, "#SBATCH --no-requeue\n" + text), "slurm-node-failure")
    assert (never.severity, never.line) == (Severity.ERROR, 1)


def test_several_options_may_stand_on_one_line(tmp_path: Path) -> None:
    launch = read([script(tmp_path, "#SBATCH -N 8 --no-kill --requeue # all\n#SBATCH -J=a -t 4\n")])
    assert set(launch.slurm) == {"nodes", "no-kill", "requeue", "job-name", "time"}


#: Ways to give a launch to another shell.
INNER = {
    "on one line": 'srun bash -c "torchrun --nnodes=16 x.py --save /tmp/c"\n',
    "over lines": (
        "srun --label bash -lc '\ncd /opt\ntorchrun \\\n  --nnodes=16 x.py --save /tmp/c\n'\n"
    ),
    "by a variable": (
        'C="cd /opt && torchrun --nnodes=16 x.py \\\n --save /tmp/c"\nsrun sh -c "${C}"\n'
    ),
    "by a document": (
        "read -r -d '' C <<EOF\ntorchrun --nnodes=16 \\\n x.py --save /tmp/c\nEOF\n"
        'srun bash -c "$C"\n'
    ),
    "nested": """ssh n1 bash -c "exec sh -c 'torchrun --nnodes=16 x.py --save /tmp/c'"\n""",
}


@pytest.mark.parametrize("text", INNER.values(), ids=INNER)
def test_what_is_given_to_another_shell_is_read(tmp_path: Path, text: str) -> None:
    findings = found(tmp_path, text)
    assert of(findings, "elastic-range")[0].what.startswith("--nnodes=16 is fixed")
    assert of(findings, "shared-storage")


def test_a_quote_that_never_ends_hides_nothing(tmp_path: Path) -> None:
    text = "echo it's late\ntorchrun --nnodes=16 x.py\necho \"it's early\"\n"
    assert of(found(tmp_path, text), "elastic-range")


@pytest.mark.parametrize(
    "before",
    [
        "env NCCL_DEBUG=WARN",
        "docker run --rm -e NCCL_DEBUG=WARN --env=A=b image",
        "srun --export=ALL,NCCL_DEBUG=WARN",
    ],
)
def test_a_variable_given_by_another_program_is_seen(tmp_path: Path, before: str) -> None:
    launch = read([script(tmp_path, f"{before} torchrun --nnodes=2:4 x.py NOT=this\n")])
    assert launch.env["NCCL_DEBUG"].value == "WARN"
    assert "NOT" not in launch.env


def test_a_number_of_nodes_that_only_the_caller_knows_is_not_judged(tmp_path: Path) -> None:
    assert not of(found(tmp_path, "torchrun --nnodes=$NNODES x.py\n"), "elastic-range")
    assert of(found(tmp_path, "torchrun --nnodes=$SLURM_NNODES x.py\n"), "elastic-range")


def test_overrides_of_hydra_are_flags(tmp_path: Path) -> None:
    text = (
        "srun python pretrain.py ++exp_manager.resume_if_exists=True trainer.num_nodes=8 "
        "exp_manager.explicit_log_dir=/tmp/x "
        "exp_manager.checkpoint_callback_params.every_n_train_steps=900\n"
    )
    checks = {one.check for one in found(tmp_path, text)}
    assert {"checkpoint-interval", "shared-storage"} <= checks
    assert "resume" not in checks


@pytest.mark.parametrize(
    "text",
    [
        "torchrun --nnodes=2 'never closed\n",
        "A=$A:$B\nB=$A\ntorchrun $A $B x.py\n",
        "torchrun ${UNKNOWN[@]} $(never closed\n",
        "cat <<EOF\nno end\ntorchrun x.py\n",
        'torchrun --nnodes="" --max-restarts=many --rdzv-conf=a,b=c= x.py --save-interval=often\n',
        "X=(\n" * 50 + "torchrun x.py\n",
        "torchrun\n",
        "srun\n#SBATCH\n#SBATCH --\ntorchrun --nnodes 1:2:3 x.py\n",
        "torchrun --nnodes=٣ --max-restarts=² x.py\nexport NCCL_IB_TIMEOUT=²\n",
    ],
)
def test_a_broken_script_is_read_as_far_as_it_can_be(tmp_path: Path, text: str) -> None:
    try:
        launch = read([script(tmp_path, text)])
    except LaunchError as refused:
        assert "starts no training" in str(refused)  # noqa: PT017 (either is right)
    else:
        examine(launch, step_s=1.0)


# --- The command ----------------------------------------------------------------------------------


def run(*arguments: object) -> Result:
    return CliRunner().invoke(preflight, [str(one) for one in arguments])


def test_a_submit_hook_fails_on_errors_only_when_asked(tmp_path: Path) -> None:
    bad = script(tmp_path, "torchrun --nnodes=8 train.py\n")
    assert run(bad).exit_code == 0
    assert run(bad, "--fail").exit_code == 1
    assert run(script(tmp_path, SOUND), "--fail", "--step-seconds", 2).exit_code == 0


def test_findings_are_told_as_json(tmp_path: Path) -> None:
    result = run(script(tmp_path, "torchrun --nnodes=8 train.py\n"), "--json")
    findings = json.loads(result.output)["findings"]
    first = next(one for one in findings if one["check"] == "elastic-range")
    assert (first["severity"], first["line"]) == ("error", 1)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\0\1\2", "is no launch script"),
        (b"echo hello\n", "starts no training"),
        (b"{not json", "is not JSON"),
        (b"", "starts no training"),
    ],
)
def test_what_is_no_launch_script_is_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    result = run(path)
    assert result.exit_code == 2
    assert sentence in result.output


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    result = run(tmp_path / "none.sh")
    assert (result.exit_code, "No such file" in result.output) == (2, True)
