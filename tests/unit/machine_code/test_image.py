"""An image runs wherever it is put, and what it cannot hold is refused."""

import ctypes
import mmap
import sys

import numpy as np
import pytest

from stoker.machine_code.image import lay_out, put_in_place

binding = pytest.importorskip("llvmlite.binding")

# A function that reads a constant, calls another one, and calls one from outside by way of a table of functions.
SOURCE = """
target triple = "{triple}"
@numbers = internal constant [3 x i64] [i64 5, i64 7, i64 11]
@table = internal constant [2 x i64 (i64)*] [i64 (i64)* @inner, i64 (i64)* @labs]
declare i64 @labs(i64)
define internal i64 @inner(i64 %x) noinline {{
  %at = getelementptr [3 x i64], [3 x i64]* @numbers, i64 0, i64 %x
  %value = load i64, i64* %at
  ret i64 %value
}}
define i64 @outer(i64 %x, i64 %which) {{
  %at = getelementptr [2 x i64 (i64)*], [2 x i64 (i64)*]* @table, i64 0, i64 %which
  %function = load i64 (i64)*, i64 (i64)** %at
  %value = call i64 %function(i64 %x)
  %more = call i64 @inner(i64 1)
  %sum = add i64 %value, %more
  ret i64 %sum
}}
"""


def _pointers(text):
    """LLVM 15 and later know but one kind of pointer."""
    for old in ("i64 (i64)**", "i64 (i64)*", "[3 x i64]*", "[2 x ptr]*", "i64*"):
        text = text.replace(old, "ptr")
    return text


def _compiled(text, *, codemodel="large"):
    target = binding.Target.from_default_triple()
    tm = target.create_target_machine(reloc="static", codemodel=codemodel)
    return tm.emit_object(binding.parse_assembly(text.format(triple=target.triple)))


def _run(image, names=("labs",)):
    process = ctypes.CDLL(None)
    memory = mmap.mmap(-1, 1 << 16)
    whole = np.frombuffer(memory, np.uint8)
    put_in_place(image, whole, {name: ctypes.cast(getattr(process, name), ctypes.c_void_p).value for name in names})
    assert process.mprotect(ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(1 << 16), 0x5) == 0
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
        whole.ctypes.data + image.symbols["outer"]
    )
    function.memory = whole
    return function


@pytest.fixture
def image():
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    if sys.platform != "linux" or binding.Target.from_default_triple().name != "x86-64":
        pytest.skip("images are laid out for Linux on x86-64")
    return lay_out(_compiled(_pointers(SOURCE)), ["outer"])


def test_the_same_image_runs_at_several_places_at_once(image):
    functions = [_run(image) for _ in range(3)]
    assert len({function.memory.ctypes.data for function in functions}) == 3
    for function in functions:
        assert [function(x, 0) for x in range(3)] == [12, 14, 18]
        assert function(-40, 1) == 47
    assert set(image.outside) == {"labs"}


def test_what_is_not_there_is_named(image):
    with pytest.raises(KeyError, match="nowhere"):
        lay_out(_compiled(_pointers(SOURCE)), ["outer", "nowhere"])
    with pytest.raises(KeyError, match="labs"):
        put_in_place(image, np.zeros(1 << 16, np.uint8), {})


@pytest.mark.usefixtures("image")
def test_code_that_reaches_only_near_places_is_refused():
    with pytest.raises(NotImplementedError, match="an address of kind"):
        lay_out(_compiled(_pointers(SOURCE), codemodel="small"), ["outer"])


@pytest.mark.usefixtures("image")
def test_code_with_memory_of_its_own_is_refused():
    text = _pointers(SOURCE) + "@counter = global i64 5\n"
    with pytest.raises(NotImplementedError, match="is written to by the code"):
        lay_out(_compiled(text), ["outer"])


def test_what_is_no_object_is_refused():
    with pytest.raises(NotImplementedError, match="no ELF object"):
        lay_out(b"MZ" + bytes(1000), [])
