"""Wrapping methods so that everything comes off again, in whatever order others patch."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

from inferspan import guard
from inferspan.capture.patching import ClassMethods, InstanceMethod, Undo, wrap_class_method


class Base:
    """Something with a method."""

    def run(self, value: int, *, times: int = 1) -> int:
        """Multiply."""
        return value * times


class Child(Base):
    """Inherits the method."""


def _plus_one(original: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return original(*args, **kwargs) + 1


def module_level(value: int) -> int:
    """A method that a user may put on an instance."""
    return value * 10


def test_inherited_method_is_wrapped_on_the_subclass_only() -> None:
    """The base class is untouched, the signature stays, and nothing is left afterwards."""
    signature = inspect.signature(Child.run)
    undo = wrap_class_method(Child, "run", _plus_one)
    assert (Child().run(2, times=3), Base().run(2, times=3)) == (7, 6)
    assert inspect.signature(Child.run) == signature and Child.run.__doc__ == "Multiply."
    undo()
    assert "run" not in vars(Child) and Child().run(2) == 2


def test_patch_of_the_base_class_counts() -> None:
    """What somebody puts on the base class later is called through the wrapper."""
    undo = wrap_class_method(Child, "run", _plus_one)
    plain = Base.run
    try:
        Base.run = lambda self, value, *, times=1: -value  # type: ignore[method-assign]
        assert Child().run(2) == -1
    finally:
        Base.run = plain  # type: ignore[method-assign]
        undo()
    assert Child().run(2) == 2


def test_foreign_patch_on_top_stays() -> None:
    """A wrapper that somebody has wrapped is not taken out from under them."""
    undo = wrap_class_method(Child, "run", _plus_one)
    ours = Child.run

    def third_party(self: Any, value: int, *, times: int = 1) -> int:
        return ours(self, value, times=times) * 100

    Child.run = third_party  # type: ignore[method-assign]
    undo()
    assert Child.run is third_party
    del Child.run


def test_wrappers_of_several_come_off_in_any_order() -> None:
    """Each user of a class has wrappers of its own; one that goes while another lies above it leaves nothing behind."""
    plain, template = vars(Base)["run"], Child.run
    for kind in (Base, Child):
        lower, upper = (wrap_class_method(kind, "run", _plus_one) for _ in range(2))
        assert kind().run(1) == 3
        lower()
        assert kind().run(1) == 2
        assert inspect.unwrap(kind.run) is template
        lower()
        upper()
    assert vars(Base)["run"] is plain
    assert "run" not in vars(Child)


def test_a_wrapper_under_that_of_others_does_nothing_once_removed() -> None:
    """It cannot be taken out there, so it passes calls on."""
    undo = wrap_class_method(Child, "run", _plus_one)
    ours = Child.run
    Child.run = lambda self, value, *, times=1: ours(self, value, times=times) * 100  # type: ignore[method-assign]
    try:
        undo()
        assert Child().run(2) == 200
    finally:
        del Child.run


def test_counted_by_class() -> None:
    """The wrapper goes with the last user, and letting go twice counts once."""
    methods = ClassMethods()
    first, second = methods.acquire(Child, "run", _plus_one), methods.acquire(Child, "run", _plus_one)
    assert Child().run(1) == 2
    first()
    first()
    assert Child().run(1) == 2
    second()
    assert Child().run(1) == 1


def test_method_on_the_instance() -> None:
    """A callable in the object's own table is wrapped there, looks like the original, and is restored if it is still ours."""
    owner = Base()
    owner.run = module_level  # type: ignore[method-assign,assignment]
    undo = InstanceMethod.put(owner, "run", _plus_one)
    assert owner.run(1) == 11
    assert inspect.signature(owner.run) == inspect.signature(module_level)
    twin, loaded = copy.deepcopy(owner), pickle.loads(pickle.dumps(owner))
    assert (twin.run(1), loaded.run(1)) == (10, 10)
    undo()
    assert owner.run is module_level
    undo = InstanceMethod.put(owner, "run", _plus_one)
    kept = owner.run
    owner.run = lambda value: kept(value) * 2  # type: ignore[method-assign,assignment,misc]
    undo()
    assert owner.run(1) == 20, "the third_party wrapper was taken off, or ours is not transparent"


def test_undo_goes_on_after_a_failure(contained: list[guard.Swallowed]) -> None:
    """Each undo runs once, last first, though one of them fails."""
    undo, seen = Undo(), []
    undo.push(lambda: seen.append(1))
    undo.push(lambda: [][0])
    undo.push(lambda: seen.append(2))
    undo.close()
    undo.close()
    assert seen == [2, 1] and [error.kind for error in contained] == ["IndexError"]
    contained.clear()


def test_undo_of_a_change_that_came_too_late_runs_at_once() -> None:
    """A thread that changes something while another one takes everything off leaves nothing behind."""
    undo, seen = Undo(), []
    undo.close()
    undo.push(lambda: seen.append(1))
    assert seen == [1]
