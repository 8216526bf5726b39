"""Signals: the first asks, the second Ctrl-C ends at once, and handlers are put back. Children are signalled, not the test."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from tests.harness import Zygote

from stoker.train.fit import SIGNALS, Signals

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def exit_code(signals: Signals) -> int:
    """What a command that was asked to end returns to its shell."""
    return 0 if signals.asked is None else 128 + signals.asked


def send(*numbers: int) -> list[Any]:
    """Signal oneself within the loop; what was asked after each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen: list[Any] = []
    with Signals() as signals:
        for number in numbers:
            try:
                os.kill(os.getpid(), number)
                seen.append(signals.asked)
            except KeyboardInterrupt:
                seen.append("interrupted")
    return [*seen, exit_code(signals), signal.Signals(signals.asked or 0).name]


def send_in_child(numbers: list[int]) -> list[Any]:
    return send(*numbers)


@pytest.mark.parametrize("first", SIGNALS)
def test_a_ctrl_c_after_any_signal_interrupts_at_once(zygote: Zygote, first: signal.Signals) -> None:
    seen = zygote.run(send_in_child, numbers=[first, signal.SIGINT]).check()
    assert seen == [first, "interrupted", CODES[first], first.name]


def leave_by(number: int) -> None:
    """A loop that is asked to end and leaves as a command does."""
    with Signals() as signals:
        while signals.asked is None:
            os.kill(os.getpid(), number)
    raise SystemExit(exit_code(signals))


@pytest.mark.parametrize("number", SIGNALS)
def test_the_exit_code_is_that_of_the_signal(zygote: Zygote, number: signal.Signals) -> None:
    assert zygote.run(leave_by, number=number).exit == CODES[number]


def die_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    with Signals():
        pass
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_negative_control_without_the_handler_a_signal_kills(zygote: Zygote, number: signal.Signals) -> None:
    assert zygote.run(die_by, number=number).signal == number


def test_handlers_are_put_back_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), Signals():
        _ = 1 / 0
    assert [signal.getsignal(number) for number in SIGNALS] == before


def ignore_and_send() -> list[Any]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
    return [signals.asked, exit_code(signals), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN]


def test_what_nohup_ignores_stays_ignored(zygote: Zygote) -> None:
    assert zygote.run(ignore_and_send).check() == [None, 0, True]
