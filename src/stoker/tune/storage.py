"""Where the trials of a study are kept: in memory, or in a database with the tables of Optuna.

A trial is claimed before it runs and finished after it. Both happen in one transaction that holds the lock of the study, so several
processes share a study: each number is given out once, and a trial that is finished is on disk.

    claim     a row in state RUNNING, with its parameters and the process that runs it
    finish    the row becomes COMPLETE, PRUNED or FAIL, but only while it is still claimed by the same process
    return    a row whose process has ended becomes WAITING, and the next claim takes it. After `MOST_ATTEMPTS` it fails

Optuna makes the tables and reads them. It writes a trial with some ten transactions; here a batch of trials is one
(`benchmarks/results/bench_tune_search.json`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stoker import _disk
from stoker._text import without_credentials
from stoker.errors import OptionError
from stoker.tune.trial import FINISHED, RECORD, State, StudyTrial, as_direction, from_optuna, record_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from sqlalchemy import Connection, Engine, Table

MOST_ATTEMPTS = 3
"""A trial that has ended its process this often is failed: it may be what ends it."""
BEAT_SECONDS, LOST_SECONDS = 20.0, 120.0
"""How often a process says that it is alive, and after which silence a process of another machine counts as ended."""
CLOCK = "stoker seconds "
STATES: dict[State, str] = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
TABLES = (
    "studies", "study_user_attributes", "trials", "trial_params", "trial_values", "trial_intermediate_values",
    "trial_user_attributes", "trial_heartbeats",
)  # fmt: skip

Propose = Callable[[int, int], Sequence[StudyTrial]]
"""Gets the first free number and a count, and returns that many trials with these numbers."""


class Storage(Protocol):
    """Where the trials of a study are kept."""

    direction: str
    used_seconds: float
    """That earlier processes have searched."""

    def exchange(
        self, finished: Sequence[StudyTrial], propose: Propose, count: int, *, seconds: float = 0.0
    ) -> tuple[list[StudyTrial], list[StudyTrial]]:
        """Keep finished trials and claim others, in one step.

        Args:
            finished: Trials of this process that have ended; one in state "waiting" is given back unfinished.
            propose: Makes the trials to run, apart from those that wait.
            count: Trials to claim.
            seconds: That this process has searched so far.

        Returns:
            The trials that this process is to run, and finished ones that it has not seen: its own, and those of others.
        """

    def close(self) -> None:
        """Give back what is claimed, and the connection."""


@dataclass
class MemoryStorage:
    """The trials of a study without a storage."""

    direction: str
    used_seconds: float = 0.0
    trials: dict[int, StudyTrial] = field(default_factory=dict)

    def exchange(
        self, finished: Sequence[StudyTrial], propose: Propose, count: int, *, seconds: float = 0.0
    ) -> tuple[list[StudyTrial], list[StudyTrial]]:
        """Keep finished trials and claim others."""
        for one in finished:
            if one.state == "waiting":
                del self.trials[one.number]
            else:
                self.trials[one.number] = one
        claimed = list(propose(max(self.trials, default=-1) + 1, count)) if count else []
        self.trials |= {one.number: one for one in claimed}
        return claimed, [one for one in finished if one.state in FINISHED]

    def close(self) -> None:
        """Nothing is held."""


def open_storage(storage: str | Path | None, *, name: str, direction: str | None) -> Storage:
    """The storage of a study, made if it is new. A path is a sqlite file; anything with `://` is a URL of SQLAlchemy."""
    if storage is None:
        return MemoryStorage(direction or "minimize")
    return SqlStorage(storage, name=name, direction=direction)


def read_study(storage: str | Path, *, name: str | None = None) -> tuple[str, str, list[StudyTrial]]:
    """The name, the direction and all trials of a study of Optuna or of Stoker."""
    import optuna

    url, shown = as_url(storage), without_credentials(str(storage))
    if (path := _sqlite_path(url)) is not None and not path.is_file():
        raise OptionError(f"storage is {shown}, which does not exist. Give a file or URL that `search(storage=…)` wrote.")
    with _opening(storage), contextlib.ExitStack() as stack:
        opened = optuna.storages.RDBStorage(url)
        stack.callback(opened.engine.dispose)
        names = optuna.get_all_study_names(opened)
        if name is None and len(names) != 1:
            raise OptionError(f"{shown} holds {len(names)} studies ({', '.join(names[:9])}). Say which: name=….")
        if name is not None and name not in names:
            raise OptionError(f"{shown} has no study {name!r}; it holds {', '.join(names[:9]) or 'none'}.")
        study = optuna.load_study(study_name=name or names[0], storage=opened)
        if len(study.directions) > 1:
            raise OptionError(f"the study {study.study_name!r} has {len(study.directions)} objectives; expected one.")
        return study.study_name, study.direction.name.lower(), [from_optuna(one) for one in study.get_trials(deepcopy=False)]


def as_url(storage: str | Path) -> str:
    """The URL that SQLAlchemy takes."""
    text = str(storage)
    if "://" not in text:
        return f"sqlite:///{_disk.check_path(text)}"
    # SQLAlchemy 2.0 and 2.1 have different default drivers; this is the one of the extra `postgres`.
    return text.replace("postgresql://", "postgresql+psycopg://", 1) if text.startswith("postgresql://") else text


def _sqlite_path(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


@functools.cache
def this_process() -> dict[str, Any]:
    """Names this process so that another one of the same machine can see whether it still runs."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        host = f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
        return {"host": host, "pid": os.getpid(), "start": _start_time(os.getpid()), "id": uuid.uuid4().hex[:12]}
    return {"host": socket.gethostname(), "pid": os.getpid(), "start": "?", "id": uuid.uuid4().hex[:12]}


def _start_time(pid: int) -> str | None:
    """When a process began, in ticks since boot; None where there is no such process, or it has ended and is not yet reaped."""
    with suppress(OSError, IndexError):
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in ("Z", "X") else others[18]
    return None


def has_ended(worker: Mapping[str, Any], silent_seconds: float | None) -> bool:
    """Whether the process that claimed a trial is gone. Of another machine, only its silence is known."""
    if worker.get("host") == this_process()["host"]:
        return _start_time(int(worker.get("pid", -1))) != worker.get("start")
    return silent_seconds is not None and silent_seconds > LOST_SECONDS


class _Claim(NamedTuple):
    row: int
    record: str
    """As it was written; another one says that the trial was taken back."""
    has_params: bool


class SqlStorage:
    """The trials of a study in sqlite or PostgreSQL, in the tables of Optuna."""

    def __init__(self, storage: str | Path, *, name: str, direction: str | None) -> None:
        import sqlalchemy

        self._url = as_url(storage)
        self._sql = sqlalchemy
        if (path := _sqlite_path(self._url)) is not None:
            _disk.make_folder(path.parent)
        self.direction = _create_study(self._url, storage, name, direction)
        self._engine = _connect(self._url)
        metadata = sqlalchemy.MetaData()
        metadata.reflect(self._engine, only=TABLES)
        self._tables: Mapping[str, Table] = metadata.tables
        studies = self._tables["studies"]
        with self._engine.begin() as db:
            self._study: int = db.execute(sqlalchemy.select(studies.c.study_id).where(studies.c.study_name == name)).scalar_one()
            attributes = self._tables["study_user_attributes"]
            ours = (attributes.c.study_id == self._study) & attributes.c.key.startswith(CLOCK)
            clocks = db.execute(sqlalchemy.select(attributes.c.value_json).where(ours)).scalars().all()
            self.used_seconds = max((float(json.loads(one)) for one in clocks), default=0.0)
            self._clock = CLOCK + this_process()["id"] + uuid.uuid4().hex[:4]
            db.execute(
                attributes.insert(), {"study_id": self._study, "key": self._clock, "value_json": json.dumps(self.used_seconds)}
            )
        self._claims: dict[int, _Claim] = {}
        """By the number of the trial."""
        self._known: set[int] = set()
        """Ids of finished trials that this process has seen."""
        self._checked = -math.inf
        self._stop_beating = threading.Event()
        self._beating: threading.Thread | None = None
        if path is None:
            self._beating = threading.Thread(target=self._beat, daemon=True)
            self._beating.start()

    def exchange(
        self, finished: Sequence[StudyTrial], propose: Propose, count: int, *, seconds: float = 0.0
    ) -> tuple[list[StudyTrial], list[StudyTrial]]:
        """Keep finished trials and claim others, in one transaction."""
        claimed: list[StudyTrial] = []
        with self._locked() as db:
            kept = self._finish(db, finished)
            if time.monotonic() - self._checked > BEAT_SECONDS:
                self._take_back(db)
                self._checked = time.monotonic()
            others = self._read_new(db, kept)
            if count:
                waiting = self._waiting(db, count)
                claimed = waiting + self._claim(db, propose, count - len(waiting))
            attributes = self._tables["study_user_attributes"]
            db.execute(
                attributes.update().where((attributes.c.study_id == self._study) & (attributes.c.key == self._clock)),
                {"value_json": json.dumps(self.used_seconds + seconds)},
            )
        # Only now is anything on disk.
        for one in finished:
            self._claims.pop(one.number, None)
        self._known |= {*kept, *others}
        return claimed, [*kept.values(), *others.values()]

    def close(self) -> None:
        """Give back what is claimed, and the connection."""
        self._stop_beating.set()
        if self._beating is not None:
            self._beating.join()
        if self._claims:
            given_back = [StudyTrial(number=number, params={}, state="waiting") for number in self._claims]
            self.exchange(given_back, lambda first, count: [], 0)
        self._engine.dispose()

    @contextmanager
    def _locked(self) -> Iterator[Connection]:
        """A transaction that no other process of this study is in. It is rolled back also where Ctrl-C comes before its first row."""
        studies = self._tables["studies"]
        with self._engine.begin() as db:
            db.execute(studies.select().where(studies.c.study_id == self._study).with_for_update()).one()  # sqlite locks the file
            yield db

    def _finish(self, db: Connection, finished: Sequence[StudyTrial]) -> dict[int, StudyTrial]:
        """Write trials of this process that have ended, as far as it still holds them; returns these by the id of their row."""
        sql, tables = self._sql, self._tables
        ours = {self._claims[one.number].row: one for one in finished if one.number in self._claims}
        if not ours:
            return {}
        trials, attributes = tables["trials"], tables["trial_user_attributes"]
        query = sql.select(trials.c.trial_id, attributes.c.value_json).join(attributes, attributes.c.trial_id == trials.c.trial_id)
        query = query.where(trials.c.trial_id.in_(list(ours)) & (trials.c.state == "RUNNING") & (attributes.c.key == RECORD))
        still = {row.trial_id for row in db.execute(query) if row.value_json == self._claims[ours[row.trial_id].number].record}
        rows = [(key, one) for key, one in ours.items() if key in still]
        ended = [(key, one) for key, one in rows if one.state in FINISHED]
        now = _utc_now()
        by_id = trials.update().where(trials.c.trial_id == sql.bindparam("key"))
        record_by_id = attributes.update().where((attributes.c.trial_id == sql.bindparam("row")) & (attributes.c.key == RECORD))
        if ended:
            db.execute(by_id, [{"key": key, "state": STATES[one.state], "datetime_complete": now} for key, one in ended])
            db.execute(record_by_id, [{"row": key, "value_json": json.dumps(record_of(one))} for key, one in ended])
        returned = [{"key": key, "state": "WAITING"} for key, one in rows if one.state == "waiting"]
        if returned:
            db.execute(by_id, returned)
        values = [{"trial_id": key, "objective": 0, **_number("value", one.value)} for key, one in ended if one.value is not None]
        if values:
            db.execute(tables["trial_values"].insert(), values)
        steps = [
            {"trial_id": key, "step": step, **_number("intermediate_value", value)}
            for key, one in ended
            for step, value in one.steps.items()
        ]
        if steps:
            db.execute(tables["trial_intermediate_values"].insert(), steps)
        # An objective that asks Optuna for its parameters has none when it is claimed.
        self._write_params(db, [(key, one) for key, one in ended if not self._claims[one.number].has_params])
        return dict(ended)

    def _claim(self, db: Connection, propose: Propose, count: int) -> list[StudyTrial]:
        if count <= 0:
            return []
        trials = self._tables["trials"]
        highest = db.execute(self._sql.select(self._sql.func.max(trials.c.number)).where(trials.c.study_id == self._study)).scalar()
        found = list(propose(0 if highest is None else highest + 1, count))
        if not found:
            return []
        now = _utc_now()
        rows = [{"number": one.number, "study_id": self._study, "state": "RUNNING", "datetime_start": now} for one in found]
        ids = db.execute(trials.insert().returning(trials.c.trial_id, sort_by_parameter_order=True), rows).scalars().all()
        self._write_params(db, list(zip(ids, found, strict=True)))
        self._claims |= {
            one.number: _Claim(key, self._record(one, 1), bool(one.params)) for key, one in zip(ids, found, strict=True)
        }
        records = [
            {"trial_id": key, "key": RECORD, "value_json": self._claims[one.number].record}
            for key, one in zip(ids, found, strict=True)
        ]
        db.execute(self._tables["trial_user_attributes"].insert(), records)
        if self._beating is not None:
            beat = self._time(db)
            db.execute(self._tables["trial_heartbeats"].insert(), [{"trial_id": key, "heartbeat": beat} for key in ids])
        return found

    def _record(self, trial: StudyTrial, attempt: int) -> str:
        return json.dumps({**record_of(trial), "worker": this_process(), "attempt": attempt})

    def _write_params(self, db: Connection, rows: Sequence[tuple[int, StudyTrial]]) -> None:
        values = [
            {"trial_id": key, "param_name": name, "param_value": internal, "distribution_json": text}
            for key, one in rows
            for name, internal, text in _internal(one.params, one.distributions)
        ]
        if values:
            db.execute(self._tables["trial_params"].insert(), values)

    def _waiting(self, db: Connection, count: int) -> list[StudyTrial]:
        """Claim trials whose process has ended."""
        trials, attributes = self._tables["trials"], self._tables["trial_user_attributes"]
        query = self._sql.select(trials.c.trial_id, attributes.c.value_json)
        query = query.join(attributes, attributes.c.trial_id == trials.c.trial_id).order_by(trials.c.number).limit(count)
        query = query.where((trials.c.study_id == self._study) & (trials.c.state == "WAITING") & (attributes.c.key == RECORD))
        found = {row.trial_id: json.loads(row.value_json) for row in db.execute(query)}
        if not found:
            return []
        claimed = {key: replace(one, state="running") for key, one in self._load(db, list(found)).items()}
        for key, one in claimed.items():
            self._claims[one.number] = _Claim(key, self._record(one, found[key].get("attempt", 1) + 1), bool(one.params))
        now = _utc_now()
        by_id = trials.update().where(trials.c.trial_id == self._sql.bindparam("key"))
        db.execute(by_id, [{"key": key, "state": "RUNNING", "datetime_start": now} for key in claimed])
        by_row = attributes.update().where((attributes.c.trial_id == self._sql.bindparam("row")) & (attributes.c.key == RECORD))
        db.execute(by_row, [{"row": key, "value_json": self._claims[one.number].record} for key, one in claimed.items()])
        beats = self._tables["trial_heartbeats"]
        if self._beating is not None:
            db.execute(beats.update().where(beats.c.trial_id.in_(list(claimed))), {"heartbeat": self._time(db)})
        return list(claimed.values())

    def _take_back(self, db: Connection) -> None:
        """Let trials wait again whose process has ended; fail those that have ended several."""
        trials, attributes, beats = (self._tables[name] for name in ("trials", "trial_user_attributes", "trial_heartbeats"))
        query = self._sql.select(trials.c.trial_id, trials.c.number, attributes.c.value_json, beats.c.heartbeat)
        query = query.join(attributes, attributes.c.trial_id == trials.c.trial_id)
        query = query.outerjoin(beats, beats.c.trial_id == trials.c.trial_id)
        query = query.where((trials.c.study_id == self._study) & (trials.c.state == "RUNNING") & (attributes.c.key == RECORD))
        now, by_id = self._time(db), trials.update().where(trials.c.trial_id == self._sql.bindparam("key"))
        for row in db.execute(query).all():
            record = json.loads(row.value_json)
            silent = None if row.heartbeat is None else (now - row.heartbeat.replace(tzinfo=None)).total_seconds()
            if row.number in self._claims or not has_ended(record.get("worker", {}), silent):
                continue
            attempt = record.get("attempt", 1)
            if attempt < MOST_ATTEMPTS:
                db.execute(by_id, [{"key": row.trial_id, "state": "WAITING"}])
                continue
            db.execute(by_id, [{"key": row.trial_id, "state": "FAIL", "datetime_complete": now}])
            kept = {name: record[name] for name in ("seed", "repeat_of") if name in record}
            text = json.dumps({**kept, "error": f"its process ended {attempt} times while it ran"})
            db.execute(
                attributes.update().where((attributes.c.trial_id == row.trial_id) & (attributes.c.key == RECORD)),
                {"value_json": text},
            )

    def _read_new(self, db: Connection, kept: Mapping[int, StudyTrial]) -> dict[int, StudyTrial]:
        """Finished trials of other processes that this one has not seen, by the id of their row. Its own need not be read."""
        trials = self._tables["trials"]
        ended = (trials.c.study_id == self._study) & trials.c.state.in_(list(STATES.values()))
        if db.execute(self._sql.select(self._sql.func.count()).where(ended)).scalar_one() == len(self._known) + len(kept):
            return {}
        keys = db.execute(self._sql.select(trials.c.trial_id).where(ended)).scalars()
        return self._load(db, [key for key in keys if key not in self._known and key not in kept])

    def _load(self, db: Connection, keys: Sequence[int]) -> dict[int, StudyTrial]:
        """Trials by the id of their row."""
        from optuna.distributions import json_to_distribution

        found: dict[int, StudyTrial] = {}
        for start in range(0, len(keys), 500):
            some = list(keys[start : start + 500])
            rows = {name: self._rows(db, name, some) for name in TABLES[2:7]}
            for [row] in rows["trials"].values():
                key = row.trial_id
                shapes = {
                    one.param_name: _read_distribution(one.distribution_json, json_to_distribution)
                    for one in rows["trial_params"].get(key, ())
                }
                params = {
                    one.param_name: shapes[one.param_name].to_external_repr(one.param_value)
                    for one in rows["trial_params"].get(key, ())
                }
                record: dict[str, Any] = next(
                    (json.loads(one.value_json) for one in rows["trial_user_attributes"].get(key, ()) if one.key == RECORD), {}
                )
                values = [_read_number(one.value, one.value_type) for one in rows["trial_values"].get(key, ())]
                state: State = next((ours for ours, theirs in STATES.items() if theirs == row.state), "waiting")
                kept = {name: record[name] for name in ("seed", "seconds", "repeat_of", "error") if name in record}
                steps = {
                    one.step: _read_number(one.intermediate_value, one.intermediate_value_type)
                    for one in sorted(rows["trial_intermediate_values"].get(key, ()), key=lambda one: int(one.step))
                }
                value = values[0] if values and state == "complete" else None
                found[key] = StudyTrial(
                    number=row.number, params=params, state=state, value=value, steps=steps, distributions=shapes, **kept
                )
        return found

    def _rows(self, db: Connection, name: str, keys: list[int]) -> dict[int, list[Any]]:
        table, found = self._tables[name], dict[int, list[Any]]()
        for row in db.execute(table.select().where(table.c.trial_id.in_(keys))):
            found.setdefault(row.trial_id, []).append(row)
        return found

    def _time(self, db: Connection) -> datetime:
        """The time of the database: the clocks of machines differ, so beats of one are never compared with the clock of another."""
        if db.dialect.name != "postgresql":
            return _utc_now()
        found: datetime = db.execute(self._sql.select(self._sql.func.timezone("utc", self._sql.func.now()))).scalar_one()
        return found

    def _beat(self) -> None:
        """Say that the trials of this process still run, as other machines cannot see its id."""
        beats = self._tables["trial_heartbeats"]
        while not self._stop_beating.wait(BEAT_SECONDS):
            keys = [one.row for one in list(self._claims.values())]
            with suppress(self._sql.exc.SQLAlchemyError), self._engine.begin() as db:  # the next beat tries again
                db.execute(beats.update().where(beats.c.trial_id.in_(keys)), {"heartbeat": self._time(db)})


def _connect(url: str) -> Engine:
    import sqlalchemy

    if not url.startswith("sqlite"):
        return sqlalchemy.create_engine(url, pool_pre_ping=True)
    engine = sqlalchemy.create_engine(url, connect_args={"timeout": 60.0})

    def on_connect(connection: Any, record: Any) -> None:
        # The driver shall not begin transactions by itself: they have to hold the lock from their start.
        connection.isolation_level = None
        # A commit then appends to one file and syncs it once; readers are not blocked.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sqlalchemy.event.listen(engine, "connect", on_connect)
    sqlalchemy.event.listen(engine, "begin", on_begin)
    return engine


def _create_study(url: str, storage: str | Path, name: str, direction: str | None) -> str:
    """Let Optuna make the tables and the study; returns the direction of the study."""
    import optuna
    import sqlalchemy

    # Optuna loads all its migrations to compare the version of the tables, which those of a new file need not.
    is_new = (path := _sqlite_path(url)) is not None and not path.exists()
    with _opening(storage), _quiet_optuna():
        for attempt in range(20):
            try:
                opened = optuna.storages.RDBStorage(
                    url,
                    engine_kwargs={"connect_args": {"timeout": 60.0}} if url.startswith("sqlite") else None,
                    skip_compatibility_check=is_new,
                )
                study = optuna.create_study(storage=opened, study_name=name, direction=as_direction(direction), load_if_exists=True)
                break
            except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError) as error:
                # Two processes that begin together both make the tables; the second finds them there when it tries again.
                is_race = any(word in str(error).lower() for word in ("exist", "unique", "lock"))
                if attempt == 19 or not is_race:
                    raise
                time.sleep(0.05 * (attempt + 1))
        found = study.direction.name.lower()
        opened.engine.dispose()
    if direction is not None and found != direction:
        raise OptionError(
            f"the study {name!r} in {without_credentials(str(storage))} is to {found}, but direction is {direction!r}. Choose another name."
        )
    return found


@contextmanager
def _opening(storage: str | Path) -> Iterator[None]:
    """Raise one error, without a password, for what drivers and databases say."""
    import optuna
    import sqlalchemy

    kinds = (ImportError, sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError)
    try:
        yield
    except kinds as error:
        hint = " Install the driver: pip install 'stoker[postgres]'." if isinstance(error, ImportError) else ""
        reason = without_credentials((str(error).splitlines() or [type(error).__name__])[0])[:300].rstrip(".")
        raise OptionError(f"storage {without_credentials(str(storage))} cannot be opened: {reason}.{hint}") from None


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def _utc_now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def _number(name: str, value: float) -> dict[str, Any]:
    """A number as Optuna keeps it: infinities and NaN by name."""
    kind = "FINITE" if math.isfinite(value) else "NAN" if math.isnan(value) else "INF_POS" if value > 0 else "INF_NEG"
    return {name: float(value) if kind == "FINITE" else None, f"{name}_type": kind}


def _read_number(value: float | None, kind: Any) -> float:
    words = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}
    return float(value) if value is not None else words.get(str(kind), math.nan)


@functools.lru_cache(maxsize=4096)
def _distribution_json(one: BaseDistribution) -> str:
    from optuna.distributions import distribution_to_json

    return distribution_to_json(one)


@functools.lru_cache(maxsize=4096)
def _read_distribution(text: str, read: Callable[[str], BaseDistribution]) -> BaseDistribution:
    return read(text)


def _internal(params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> Iterable[tuple[str, float, str]]:
    return (
        (name, distributions[name].to_internal_repr(value), _distribution_json(distributions[name]))
        for name, value in params.items()
    )
