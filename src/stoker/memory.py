"""Memory: what compiled kernels ask of the memory system beyond loads and stores.

`copy_bytes` is the C library's memcpy. `prefetch` asks for a cache line ahead of its use, into the second level: there a
core can wait for more lines at once than in the first, which is what bounds reading at random (bench_gather).
`move_line` copies 256 bytes with stores that go past the caches: a batch larger than the second level would only push
the source out of them. After such stores `publish` must run before another thread or device reads.
`clear_overflow` and `saw_overflow` read the flag that a processor sets, at no cost, when a finite number becomes infinite.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE_BYTES = 256
ALIGNMENT = 64

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANES, _VECTORS = 8, 4  # 4 vectors of 8 words of 8 bytes make the 256 bytes
_SECOND_LEVEL = 2

Generated = tuple[Any, Callable[..., Any]]


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Kernels call it without the first argument, which the compiler adds."""
    known: Callable[..., Any] = intrinsic(function)
    return known


def _address(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    data = cgutils.create_struct_proxy(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _I8.as_pointer()), [offset])


@_intrinsic
def copy_bytes(typing: Any, target: Any, to: Any, source: Any, start: Any, count: Any) -> Generated:
    """Copy `count` bytes from `source` (at byte `start`) to `target` (at byte `to`); both are arrays."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, start, count = arguments
        kinds = signature.args
        cgutils.raw_memcpy(
            builder, _address(context, builder, kinds[0], target, to), _address(context, builder, kinds[2], source, start), count, 1
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@_intrinsic
def clear_bytes(typing: Any, target: Any, to: Any, count: Any) -> Generated:
    """Set `count` bytes of the array `target` to zero, from byte `to` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, count = arguments
        cgutils.memset(builder, _address(context, builder, signature.args[0], target, to), count, 0)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), generate


@_intrinsic
def prefetch(typing: Any, source: Any, start: Any) -> Generated:
    """Ask for the cache line at byte `start` of the array `source`. Any address may be asked for."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [address, _I32(0), _I32(_SECOND_LEVEL), _I32(1)])
        return context.get_dummy_value()

    return types.void(source, types.int64), generate


def _line_mover(streaming: bool) -> Callable[..., Generated]:
    vector = ir.VectorType(_I64, _LANES)
    step = _LANES * 8

    def move(typing: Any, target: Any, to: Any, source: Any, start: Any) -> Generated:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, to, source, start = arguments
            first = _address(context, builder, signature.args[0], target, to)
            origin = _address(context, builder, signature.args[2], source, start)

            def part(address: Any, i: int) -> Any:
                return builder.bitcast(builder.gep(address, [_I64(i * step)]), vector.as_pointer())

            words = [builder.load(part(origin, i), align=1) for i in range(_VECTORS)]
            for i, word in enumerate(words):
                store = builder.store(word, part(first, i), align=step if streaming else 1)
                if streaming:
                    store.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
            return context.get_dummy_value()

        return types.void(target, types.int64, source, types.int64), generate

    return move


move_line = _intrinsic(_line_mover(streaming=True))
"""Copy 256 bytes past the caches; the target's address must be a multiple of 64."""

keep_line = _intrinsic(_line_mover(streaming=False))
"""Copy 256 bytes through the caches."""


def _line_scaler(streaming: bool) -> Callable[..., Generated]:
    step = _LANES * 8

    def scale(typing: Any, target: Any, to: Any, source: Any, start: Any, center: Any, divisor: Any) -> Generated:
        word = ir.FloatType() if source.dtype == types.float32 else ir.DoubleType()
        lanes = step // (source.dtype.bitwidth // 8)
        vector = ir.VectorType(word, lanes)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, to, source, start, center, divisor = arguments
            first = _address(context, builder, signature.args[0], target, to)
            origin = _address(context, builder, signature.args[2], source, start)

            def part(address: Any, i: int) -> Any:
                return builder.bitcast(builder.gep(address, [_I64(i * step)]), vector.as_pointer())

            def spread(number: Any) -> Any:
                one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _I32(0))
                return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))

            centers, divisors = spread(center), spread(divisor)
            words = [builder.load(part(origin, i), align=1) for i in range(_VECTORS)]
            for i, one in enumerate(words):
                scaled = builder.fdiv(builder.fsub(one, centers), divisors)
                store = builder.store(scaled, part(first, i), align=step if streaming else 1)
                if streaming:
                    store.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
            return context.get_dummy_value()

        return types.void(target, types.int64, source, types.int64, source.dtype, source.dtype), generate

    return scale


move_scaled = _intrinsic(_line_scaler(streaming=True))
"""Like `move_line` for floats, which become (x - center) / divisor."""

keep_scaled = _intrinsic(_line_scaler(streaming=False))
"""Like `keep_line` for floats, which become (x - center) / divisor."""


@_intrinsic
def publish(typing: Any) -> Generated:
    """Make all stores of this thread visible before what follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_FE_OVERFLOW = {"x86_64": 8, "aarch64": 4}.get(platform.machine())
"""As <fenv.h> of the C library has it; None where it is not known."""


def _find_flags() -> bool:
    """Make the C library's functions known to compiled kernels under names of our own; False where they are not there."""
    if _FE_OVERFLOW is None:
        return False
    library = ctypes.CDLL(None)
    for name in ("feclearexcept", "fetestexcept"):
        if not hasattr(library, name):
            return False
        binding.add_symbol(f"stoker_{name}", ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return True


_HAS_FLAGS = _find_flags()


def _call_flags(builder: Any, name: str) -> Any:
    # A call of a function that the compiler knows nothing of, so that no store, and nothing that is stored, is moved across it.
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, [_I32]), name)
    return builder.call(function, [_I32(_FE_OVERFLOW)])


@_intrinsic
def clear_overflow(typing: Any) -> Generated:
    """Forget that a finite number became infinite in this thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _HAS_FLAGS:
            _call_flags(builder, "stoker_feclearexcept")
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def saw_overflow(typing: Any) -> Generated:
    """Whether a finite number became infinite in this thread since `clear_overflow`; also True where that cannot be known."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _HAS_FLAGS:
            return context.get_constant(types.boolean, True)
        return builder.icmp_signed("!=", _call_flags(builder, "stoker_fetestexcept"), _I32(0))

    return types.boolean(), generate
