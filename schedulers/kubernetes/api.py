"""Calls to the API server, JSON in and out, over the official client's login and connections.

Models are left aside: one adapter speaks to servers whose resource.k8s.io has other versions, and
a batch of hundreds of commands would spend most of its time in building them.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlparse

import msgspec
import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from schedulers.adapter import SchedulerError
from schedulers.kubernetes.config import KubernetesConfig

__all__ = [
    "Api",
    "ApiError",
    "BusyError",
    "ConflictError",
    "ForbiddenError",
    "Json",
    "MissingError",
    "UnreachableError",
    "connect",
    "path",
]

_LOG = logging.getLogger(__name__)
Json = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_OK = range(200, 300)
_BEGUN = 500  # and above: the server's own trouble
_PAGE = 500
_TRIES = 4  # of a call that the server puts off (429, 503)
_LONGEST_WAIT_S = 3.0


class ApiError(Exception):
    """The server said no; the message is one sentence. ``retry``: whether later may be better."""

    def __init__(self, message: str, status: int = 0, *, retry: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.retry = retry


class ConflictError(ApiError):
    """Somebody else wrote first, or it exists already (409)."""


class ForbiddenError(ApiError):
    """Our account may not do this (403)."""


class MissingError(ApiError):
    """There is no such thing (404)."""


class UnreachableError(ApiError):
    """No answer, or the server is in trouble itself."""


class BusyError(ApiError):
    """Not now (429): too many calls, or a PodDisruptionBudget; ``wait_s`` is what it asks for."""

    def __init__(self, message: str, status: int, wait_s: float, causes: tuple[str, ...]) -> None:
        super().__init__(message, status, retry=True)
        self.wait_s = wait_s
        self.causes = causes


@dataclass(slots=True)
class Api:
    """One server. Safe to use from several threads. Every call raises ApiError."""

    client: client.ApiClient
    timeout_s: float

    @property
    def host(self) -> str:
        """Where the server is."""
        return str(self.client.configuration.host)

    def get(self, where: str, **query: str) -> Json:
        """One object."""
        return self._patiently("GET", where, query=query)

    def pages(self, where: str, **query: str) -> Iterator[Json]:
        """All objects of a list, read in pages; of a list that expired in the middle, begun anew.

        An object may then come twice.
        """
        more: dict[str, str] = {}
        while True:
            try:
                page = self.get(where, limit=str(_PAGE), **query, **more)
            except ApiError as error:
                if error.status != 410 or not more:  # noqa: PLR2004 (Gone: the list expired)
                    raise
                more = {}
                continue
            yield from page.get("items") or ()
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            more = {"continue": token}

    def merge(self, where: str, body: Json) -> Json:
        """Patch: lists are replaced whole."""
        return self._patiently("PATCH", where, body, MERGE)

    def strategic(self, where: str, body: Json) -> Json:
        """Patch: lists with a key (conditions) are merged by it."""
        return self._patiently("PATCH", where, body, STRATEGIC)

    def create(self, where: str, body: Json) -> Json:
        """Make an object."""
        return self._patiently("POST", where, body)

    def delete(self, where: str, body: Json | None = None) -> None:
        """Delete an object; a missing one is no error."""
        try:
            self._patiently("DELETE", where, body)
        except MissingError:
            return

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Ask for a pod's eviction; raises BusyError where a PodDisruptionBudget forbids it now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._call("POST", path("pods", name, namespace=namespace) + "/eviction", body)

    def _patiently(
        self,
        method: str,
        where: str,
        body: Json | None = None,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Call; where the server asks to come again soon, do so a few times."""
        for _ in range(_TRIES - 1):
            try:
                return self._call(method, where, body, kind, query)
            except BusyError as error:
                time.sleep(min(error.wait_s, _LONGEST_WAIT_S))
        return self._call(method, where, body, kind, query)

    def _call(
        self,
        method: str,
        where: str,
        body: Json | None = None,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        headers = {"Accept": "application/json", "User-Agent": "ringfence"}
        if body is not None:
            headers["Content-Type"] = kind
        url = self.host + where + (f"?{urlencode(query)}" if query else "")
        self.client.update_params_for_auth(headers, [], ["BearerToken"], where, method, body)
        try:
            answer = self.client.rest_client.request(
                method,
                url,
                headers=headers,
                body=body,
                _request_timeout=(self.timeout_s, self.timeout_s),
            )
            data: bytes = answer.read()
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise UnreachableError(
                f"the API server at {self.host} does not answer: {_why(error)}", retry=True
            ) from error
        if answer.status in _OK:
            return _decoded(data, where)
        raise _refusal(f"{method} {where}", answer.status, data, answer.headers)


def connect(settings: KubernetesConfig) -> Api:
    """Log in as the settings say; raises SchedulerError where no login can be found or read."""
    configuration = client.Configuration()
    if settings.kubeconfig is not None and not settings.kubeconfig.is_file():
        raise SchedulerError(f"There is no kubeconfig at {settings.kubeconfig}.")
    try:
        if settings.kubeconfig is None and settings.context is None and _in_cluster():
            config.load_incluster_config(configuration)
        else:
            file = None if settings.kubeconfig is None else str(settings.kubeconfig)
            config.load_kube_config(file, settings.context, configuration)
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
        raise SchedulerError(f"No login to a Kubernetes cluster: {_why(error)}") from error
    except Exception as error:  # a broken YAML file raises the parser's own errors
        raise SchedulerError(f"The kubeconfig cannot be read: {_why(error)}") from error
    if urlparse(configuration.host).scheme not in ("http", "https"):
        raise SchedulerError(f"The kubeconfig names no API server but {configuration.host!r}.")
    configuration.connection_pool_maxsize = settings.workers
    configuration.retries = False  # the consumer tries again; a dead server must cost one time-out
    if not configuration.verify_ssl:
        _LOG.warning("the certificate of %s is not checked, as configured", configuration.host)
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return Api(client.ApiClient(configuration), settings.timeout_s)


def _in_cluster() -> bool:
    try:
        config.load_incluster_config(client.Configuration())
    except config.ConfigException:
        return False
    return True


def path(kind: str, name: str = "", *, namespace: str = "", group: str = "") -> str:
    """Where an object or a list lives: ``group`` as ``resource.k8s.io/v1``, empty: core."""
    root = f"/apis/{group}" if group else "/api/v1"
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{scope}/{kind}" + (f"/{quote(name, safe='')}" if name else "")


def _decoded(data: bytes, where: str) -> Json:
    try:
        found: Json = msgspec.json.decode(data, type=dict)
    except msgspec.DecodeError as error:
        raise UnreachableError(
            f"the answer about {where} is not JSON: {error}", retry=True
        ) from error
    return found


def _refusal(  # noqa: PLR0911 (one return a status)
    call: str, status: int, data: bytes, headers: Mapping[str, str]
) -> ApiError:
    """What an answer that is no success means."""
    try:
        said: Json = msgspec.json.decode(data, type=dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = {}
    text = " ".join(str(said.get("message") or call).split())[:500]
    match status:
        case 409:
            return ConflictError(text, status, retry=True)
        case 404:
            return MissingError(text, status)
        case 403:
            needed = "deploy/kubernetes/rbac.yaml has what is needed"
            return ForbiddenError(f"our account may not do this: {text} ({needed})", status)
        case 401:
            return ApiError("the API server does not accept our login (401)", status, retry=True)
        case 429 | 503:
            return _busy(said, status, headers, text)
        case _ if status >= _BEGUN:
            words = f"the API server failed to answer {call} ({status}): {text}"
            return UnreachableError(words, status, retry=True)
        case _:
            return ApiError(f"{call} was refused ({status}): {text}", status)


def _busy(said: Json, status: int, headers: Mapping[str, str], text: str) -> ApiError:
    details = said.get("details") or {}
    asked = headers.get("Retry-After") or details.get("retryAfterSeconds") or 1
    causes = details.get("causes") or ()
    try:
        wait_s = max(0.2, float(asked))
    except ValueError:
        wait_s = 1.0
    return BusyError(text, status, wait_s, tuple(str(one.get("message", "")) for one in causes))


def _why(error: BaseException) -> str:
    """The innermost reason in one line."""
    while isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
        error = error.reason
    if isinstance(error, ApiException):
        return str(error.reason)
    return " ".join(str(error).split())[:300] or type(error).__name__
