"""An entry for each loop: a C function that Python calls with objects, and that calls the loop with what is in them.

Python ──► entry(self, objects, how many)    each object is looked at: an array of the right kind, or a number
           ──► the lock is given up, unless the loop keeps it
           ──► the loop, as numba compiled it: pointers, lengths and numbers
           ◄── the lock is taken again; None, a number or an exception

Imported where loops are compiled, for it imports numba. Numba's own entries do the same, and need numba to do it.

Source:
    Python/C API, METH_FASTCALL, PyEval_SaveThread; numba, "Extending Numba", the low-level API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.runtime.nrtdynmod import _meminfo_struct_type
from numba.np.numpy_support import as_dtype

from stoker.machine_code import objects
from stoker.machine_code.load import OBJECTS, TABLE

_BIT, _BYTE, _HALF, _WORD = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_POINTER = _BYTE.as_pointer()
_ENTRY = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _WORD])
# Of the interpreter: what it returns, and what it takes.
_FUNCTIONS = {
    "PyLong_AsLongLong": (_WORD, [_POINTER]),
    "PyLong_AsUnsignedLongLong": (_WORD, [_POINTER]),
    "PyLong_FromLongLong": (_POINTER, [_WORD]),
    "PyBool_FromLong": (_POINTER, [_WORD]),
    "PyNumber_Index": (_POINTER, [_POINTER]),
    "PyObject_IsTrue": (_HALF, [_POINTER]),
    "PyType_IsSubtype": (_HALF, [_POINTER, _POINTER]),
    "PyErr_Occurred": (_POINTER, []),
    "PyErr_SetString": (ir.VoidType(), [_POINTER, _POINTER]),
    "PyEval_SaveThread": (_POINTER, []),
    "PyEval_RestoreThread": (ir.VoidType(), [_POINTER]),
    "Py_IncRef": (ir.VoidType(), [_POINTER]),
    "Py_DecRef": (ir.VoidType(), [_POINTER]),
}


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that Python calls.

    Args:
        name: Of the loop, with its module's.
        compiled: What numba made of it.
        keeps_lock: Whether it keeps the interpreter's lock.
    """

    name: str
    compiled: Any
    keeps_lock: bool


def add_entry(module: ir.Module, loop: Loop, context: Any) -> None:
    """Define the entry of a loop, under its name.

    Args:
        module: Gets the entry.
        loop: The loop.
        context: Numba's, of the processor.

    Raises:
        NotImplementedError: The loop takes or returns what no entry knows.
    """
    signature = loop.compiled.signature
    function = context.declare_function(module, loop.compiled.fndesc)
    entry = ir.Function(module, _ENTRY, name=loop.name)
    builder = ir.IRBuilder(entry.append_basic_block())
    _, given, num_given = entry.args
    wrong_number = builder.icmp_signed("!=", num_given, _WORD(len(signature.args)))
    with builder.if_then(wrong_number, likely=False):
        _fail(builder, "TypeError", f"{loop.name} takes {len(signature.args)} arguments")
    found = [builder.load(builder.gep(given, [_WORD(number)])) for number in range(len(signature.args))]
    values: dict[int, Any] = {}
    # Numbers first: what they are may be a matter of Python code, which must not come between a look at an array and
    # its use.
    for is_array in (False, True):
        for number, (kind, value) in enumerate(zip(signature.args, found, strict=True)):
            if isinstance(kind, types.Array) is not is_array:
                continue
            if is_array:
                _check_array(builder, value, kind, f"argument {number + 1} of {loop.name} must be {_words(kind)}")
                values[number] = _array(context, builder, value, kind)
            else:
                values[number] = _number(builder, value, kind)
    if not loop.keeps_lock:
        state = _call(builder, "PyEval_SaveThread")
    status, result = context.call_conv.call_function(
        builder, function, signature.return_type, signature.args, [values[number] for number in range(len(values))]
    )
    if not loop.keeps_lock:
        _call(builder, "PyEval_RestoreThread", state)
    with builder.if_then(status.is_error, likely=False):
        _fail(builder, "IndexError", f"{loop.name} came upon what cannot be: a place outside of an array, or no memory")
    builder.ret(_returned(builder, result, signature.return_type))


def add_memory(module: ir.Module) -> None:
    """Define what loops get their own arrays by, as numba's runtime does: a block with its head, freed with its owner.

    Args:
        module: Gets the functions.

    Raises:
        NotImplementedError: This numba has other heads.
    """
    head = [str(element) for element in _meminfo_struct_type.elements]
    if head != [str(kind) for kind in (_WORD, _POINTER, _POINTER, _POINTER, _WORD)]:
        raise NotImplementedError(f"numba's memory has a head of {head}")
    allocate = ir.FunctionType(_POINTER, [_WORD])
    malloc = cgutils.get_or_insert_function(module, allocate, "malloc")
    free = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), [_POINTER]), "free")
    make = ir.Function(module, ir.FunctionType(_POINTER, [_WORD, _HALF]), name="NRT_MemInfo_alloc_aligned")
    builder = ir.IRBuilder(make.append_basic_block())
    num_bytes, align = make.args[0], builder.zext(make.args[1], _WORD)
    block = builder.call(malloc, [builder.add(builder.add(num_bytes, align), _WORD(_HEAD_BYTES))])
    address = builder.ptrtoint(block, _WORD)
    with builder.if_then(builder.icmp_unsigned("==", address, _WORD(0)), likely=False):
        builder.ret(block)
    behind = builder.add(builder.add(address, _WORD(_HEAD_BYTES - 1)), align)
    data = builder.and_(behind, builder.neg(align))
    head = builder.bitcast(block, _WORD.as_pointer())
    # How many hold it, what else is to be done when nobody does, where the data are, and how many bytes.
    for place, value in enumerate((_WORD(1), _WORD(0), _WORD(0), data, num_bytes, _WORD(0))):
        builder.store(value, builder.gep(head, [_WORD(place)]))
    builder.ret(block)
    end = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER]), name="NRT_MemInfo_call_dtor")
    builder = ir.IRBuilder(end.append_basic_block())
    builder.call(free, [end.args[0]])
    builder.ret_void()


_HEAD_BYTES = 64


def _call(builder: ir.IRBuilder, name: str, *arguments: Any) -> Any:
    returned, taken = _FUNCTIONS[name]
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(returned, taken), name)
    return builder.call(function, arguments)


def _object(builder: ir.IRBuilder, name: str) -> Any:
    table = builder.module.globals.get(TABLE)
    if table is None:
        table = ir.GlobalVariable(builder.module, ir.ArrayType(_POINTER, len(OBJECTS)), TABLE)
        table.initializer = table.value_type(None)
    return builder.load(builder.gep(table, [_HALF(0), _HALF(list(OBJECTS).index(name))]))


def _fail(builder: ir.IRBuilder, exception: str, message: str) -> None:
    text = cgutils.global_constant(builder, "message", cgutils.make_bytearray(message.encode() + b"\0"))
    _call(builder, "PyErr_SetString", _object(builder, exception), builder.bitcast(text, _POINTER))
    builder.ret(_POINTER(None))


def _read(builder: ir.IRBuilder, value: Any, place: int, kind: Any) -> Any:
    """Return what an object has at a place."""
    return builder.load(builder.bitcast(builder.gep(value, [_WORD(place)]), kind.as_pointer()))


def _check_array(builder: ir.IRBuilder, value: Any, kind: Any, message: str) -> None:
    is_array = _is_array(builder.module)
    flags = objects.IS_CONTIGUOUS | objects.IS_ALIGNED | (objects.IS_WRITEABLE if kind.mutable else 0)
    numbers = objects.type_numbers(as_dtype(kind.dtype))
    is_right = builder.call(is_array, [value, _HALF(kind.ndim), _WORD(numbers), _HALF(flags)])
    with builder.if_then(builder.not_(is_right), likely=False):
        _fail(builder, "TypeError", message)


def _is_array(module: ir.Module) -> Any:
    """Return the function that looks whether an object is an array of some dimensions, kinds and flags."""
    name = "stoker.is_array"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(_BIT, [_POINTER, _HALF, _WORD, _HALF]), name=name)
    function.linkage = "internal"
    value, num_dimensions, numbers, flags = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    found = _read(builder, value, objects.TYPE, _POINTER)
    with builder.if_then(builder.icmp_unsigned("!=", found, _object(builder, "ndarray")), likely=False):
        is_kind_of = _call(builder, "PyType_IsSubtype", found, _object(builder, "ndarray"))
        with builder.if_then(builder.icmp_signed("==", is_kind_of, _HALF(0))):
            builder.ret(_BIT(0))
    dtype = _read(builder, value, objects.DTYPE, _POINTER)
    number = builder.and_(builder.zext(_read(builder, dtype, objects.TYPE_NUMBER, _HALF), _WORD), _WORD(63))
    order = _read(builder, dtype, objects.BYTE_ORDER, _BYTE)
    is_native = builder.or_(
        *(builder.icmp_unsigned("==", order, _BYTE(char)) for char in (objects.NATIVE, objects.INDIFFERENT))
    )
    conditions = (
        builder.icmp_signed("==", _read(builder, value, objects.NUM_DIMENSIONS, _HALF), num_dimensions),
        builder.icmp_signed("==", builder.and_(_read(builder, value, objects.FLAGS, _HALF), flags), flags),
        builder.trunc(builder.lshr(numbers, number), _BIT),
    )
    is_right = is_native
    for condition in conditions:
        is_right = builder.and_(is_right, condition)
    builder.ret(is_right)
    return function


def _array(context: Any, builder: ir.IRBuilder, value: Any, kind: Any) -> Any:
    """Return the array that an object is, as numba's loops take it: nobody's memory, contiguous."""
    array = context.make_array(kind)(context, builder)
    item_bytes = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    dimensions = _read(builder, value, objects.DIMENSIONS, _WORD.as_pointer())
    shape = [builder.load(builder.gep(dimensions, [_WORD(axis)])) for axis in range(kind.ndim)]
    strides = [_WORD(item_bytes)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    num_items = shape[0]
    for length in shape[1:]:
        num_items = builder.mul(num_items, length)
    array.meminfo = cgutils.get_null_value(array.meminfo.type)
    array.parent = cgutils.get_null_value(array.parent.type)
    array.data = _read(builder, value, objects.DATA, array.data.type)
    array.shape, array.strides = cgutils.pack_array(builder, shape), cgutils.pack_array(builder, strides)
    array.itemsize, array.nitems = _WORD(item_bytes), num_items
    return array._getvalue()


def _number(builder: ir.IRBuilder, value: Any, kind: Any) -> Any:
    if kind == types.boolean:
        found = _call(builder, "PyObject_IsTrue", value)
        _pass_on(builder, found)
        return builder.trunc(found, _BIT)
    if kind == types.int64:
        found = _call(builder, "PyLong_AsLongLong", value)
        _pass_on(builder, found)
        return found
    if kind == types.uint64:
        index = _call(builder, "PyNumber_Index", value)
        with builder.if_then(builder.icmp_unsigned("==", index, _POINTER(None)), likely=False):
            builder.ret(_POINTER(None))
        found = _call(builder, "PyLong_AsUnsignedLongLong", index)
        _call(builder, "Py_DecRef", index)
        _pass_on(builder, found)
        return found
    raise NotImplementedError(f"no entry takes {kind}")


def _pass_on(builder: ir.IRBuilder, found: Any) -> None:
    """Return with the exception that Python has set, if a number is what stands for one."""
    with builder.if_then(builder.icmp_unsigned("==", found, found.type(-1)), likely=False):
        failed = builder.icmp_unsigned("!=", _call(builder, "PyErr_Occurred"), _POINTER(None))
        with builder.if_then(failed):
            builder.ret(_POINTER(None))


def _returned(builder: ir.IRBuilder, result: Any, kind: Any) -> Any:
    if kind == types.none:
        nothing = _object(builder, "None")
        _call(builder, "Py_IncRef", nothing)
        return nothing
    if kind == types.boolean:
        return _call(builder, "PyBool_FromLong", builder.zext(result, _WORD))
    if kind == types.int64:
        return _call(builder, "PyLong_FromLongLong", result)
    raise NotImplementedError(f"no entry returns {kind}")


def _words(kind: Any) -> str:
    return f"a contiguous {'writable ' if kind.mutable else ''}array of {kind.dtype}, of {kind.ndim} dimensions"
