"""Verdicts on order: is it as shuffled as it is said to be, and is each epoch shuffled anew?"""

from __future__ import annotations

from stoker.feed.auditing.finding import Finding, Severity, counted
from stoker.feed.auditing.shuffle import MIN_EVENTS, MIN_SHARE, Order, Recurrence


def judge_order(order: Order | None, shuffled: bool | None) -> Finding:
    """The order of an epoch, against what is said of it."""
    if order is None:
        return Finding(kind="order", severity="unchecked", text="Needs sample numbers: by a reference, or by ids.")
    if not order.judged:
        text = f"{counted(order.num_samples, 'row')} had a number of their own: too few to judge their order."
        return Finding(kind="order", severity="unchecked", text=text)
    spread = f"sample numbers inside a batch spread {order.spread:.2f} times as far as after a shuffle"
    if order.stepped:
        text = f"{order.step_share:.0%} of the samples are followed by the {_follower(order.step)}; {spread}."
    elif order.clustered:
        text = f"Batches are drawn from parts of the data: {spread}."
    else:
        return Finding(kind="order", severity="passed", text=f"Shuffled: {spread}, and no step from one to the next is common.")
    if shuffled is False:
        return Finding(kind="order", severity="passed", text=f"Not shuffled, as it says. {text}")
    if shuffled is None:
        return Finding(kind="order", severity="note", text=f"Not shuffled. {text}", count=1)
    return Finding(kind="order", severity="fault", text=f"Said to be shuffled, but is not. {text}", count=1)


def _follower(step: int) -> str:
    if abs(step) == 1:
        return "next one" if step == 1 else "one before"
    return f"one {abs(step):,} {'after' if step > 0 else 'before'} it" if step else "same one"


def judge_recurrence(again: Recurrence, order: Order | None, shuffled: bool | None) -> Finding:
    """The order of one epoch against that of the epoch before."""
    if again.num_compared < MIN_EVENTS:
        text = f"{counted(again.num_compared, 'sample')} of a content of their own came in two epochs: too few to compare."
        return Finding(kind="same order", severity="unchecked", text=text)
    if again.share < MIN_SHARE or again.number < MIN_EVENTS:
        return Finding(kind="same order", severity="passed", text="Each epoch has an order of its own.")
    text = f"{again.share:.0%} of the samples have the same follower in two epochs"
    text = text if again.share < 1 else "Two epochs have the very same order"
    if shuffled is False or (order is not None and order.stepped):
        return Finding(kind="same order", severity="passed", text=f"{text}, as expected of an order that is not shuffled.")
    severity: Severity = "fault" if shuffled else "note"
    return Finding(kind="same order", severity=severity, text=f"{text}: is the seed the same each time?", count=again.number)
