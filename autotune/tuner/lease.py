"""Holding a study, so that no two tuners measure it and one can be continued when its tuner is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable

from autotune.measure.processes import ProcessId, here, this_process
from autotune.store.records import Lease, StudyRecord
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble

RENEW_SECONDS = 15.0
EXPIRES_SECONDS = 120.0
"""A lease of another host that was not renewed for so long is dead; here the process itself is looked at."""
_LOG = logging.getLogger(__name__)


_LIVE: set[str] = set()
"""Tokens that this process holds: it may end a study and live on, without having been able to give the lease back."""


def new_lease() -> Lease:
    """A lease for this process."""
    own = this_process()
    token = uuid.uuid4().hex
    _LIVE.add(token)
    return Lease(token, socket.gethostname(), "/".join(here()), own.pid, own.start)


def held(study: StudyRecord) -> bool:
    """Whether a tuner that is alive runs the study."""
    lease = study.lease
    if lease is None:
        return False
    if (lease.host, lease.boot) == (socket.gethostname(), "/".join(here())):
        if lease.pid == os.getpid() and lease.token not in _LIVE:
            return False
        return ProcessId(lease.pid, lease.start).alive()
    return study.lease_age is not None and study.lease_age < EXPIRES_SECONDS


def interrupted(study: StudyRecord) -> bool:
    """Whether the study says that it runs, but nobody runs it."""
    return study.state == "running" and not held(study)


class Heartbeat:
    """Renews a lease from a thread of its own until it is left."""

    def __init__(self, store: Store, study_id: int, lease: Lease, *, lost: Callable[[], None]) -> None:
        """
        Args:
            lost: called once, from that thread, when somebody else holds the study.
        """
        self._store = store
        self._study_id = study_id
        self._lease = lease
        self._lost = lost
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="autotune-lease", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        _LIVE.discard(self._lease.token)
        # What cannot be given back is dead with this process, and must not hide why the study ended.
        with contextlib.suppress(StoreTrouble):
            self._store.release(self._study_id, self._lease)

    def _beat(self) -> None:
        while not self._done.wait(RENEW_SECONDS):
            try:
                mine = self._store.renew(self._study_id, self._lease)
            except StoreTrouble as trouble:
                _LOG.warning("the lease of the study could not be renewed: %s", trouble)
                continue  # the next beat may succeed; whoever takes the study meanwhile is noticed then
            if not mine:
                self._lost()
                return
