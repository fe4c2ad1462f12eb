// Arrays that Python hands over: memory by the buffer protocol, nothing copied, never another dtype than is asked for.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace nb = nanobind;

namespace stoker {

// The memory of any contiguous array, held for as long as this lives. Made and destroyed with the interpreter's lock; its
// memory may be used without.
class Memory {
 public:
  Memory() = default;
  explicit Memory(nb::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) throw nb::python_error();
  }
  Memory(Memory&& other) noexcept { std::swap(view_, other.view_); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(view_, other.view_);
    return *this;
  }
  ~Memory() {
    if (view_.obj) PyBuffer_Release(&view_);
  }

  const std::byte* bytes() const { return static_cast<const std::byte*>(view_.buf); }
  size_t num_bytes() const { return static_cast<size_t>(view_.len); }
  size_t num_rows() const { return view_.ndim ? static_cast<size_t>(view_.shape[0]) : 1; }
  bool is_signed() const { return view_.format && view_.format[0] && std::strchr("bhilq", view_.format[0]); }

 protected:
  Py_buffer view_{};
};

// A contiguous array of T with N dimensions; read-only where T is const.
template <typename T, int N = 1>
class Array : public Memory {
 public:
  T* data() const { return static_cast<T*>(view_.buf); }
  size_t size() const { return num_bytes() / sizeof(T); }
  size_t shape(int dimension) const { return static_cast<size_t>(shape_[dimension]); }
  std::span<T> span() const { return {data(), size()}; }
  operator std::span<T>() const { return span(); }
  nb::object owner() const { return nb::borrow(view_.obj); }

  // Takes an object's memory; false, and no error set, where it is not such an array.
  bool take(PyObject* object) {
    constexpr int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
    if (!PyObject_CheckBuffer(object)) return false;
    if (PyObject_GetBuffer(object, &view_, flags) != 0) {
      PyErr_Clear();
      view_.obj = nullptr;
      return false;
    }
    if (view_.ndim != N || view_.itemsize != sizeof(T) || !is_of_kind(view_.format)) return false;
    std::copy_n(view_.shape, N, shape_);
    return true;
  }

 private:
  static bool is_of_kind(const char* format) {
    if (!format) return sizeof(T) == 1;
    if (*format && std::strchr("@=<", *format)) ++format;
    using V = std::remove_const_t<T>;
    const char* kinds = std::is_floating_point_v<V> ? "efdg" : std::is_signed_v<V> ? "bhilqn" : "?cBHILQN";
    return *format && format[1] == '\0' && std::strchr(kinds, *format);
  }

  Py_ssize_t shape_[N]{};  // of its own: where an object has no shape, that of a view is in the view, which may move
};

template <typename T>
using Matrix = Array<T, 2>;

}  // namespace stoker

namespace nanobind::detail {

template <typename T, int N>
struct type_caster<stoker::Array<T, N>> {
  using V = std::remove_const_t<T>;
  static constexpr bool is_float = std::is_floating_point_v<V>, is_bool = std::is_same_v<V, bool>;
  static constexpr auto kind() {
    if constexpr (is_bool) return const_name("numpy.bool_");
    else
      return const_name<is_float>(const_name("numpy.float"),
                                  const_name<std::is_signed_v<V>>(const_name("numpy.int"), const_name("numpy.uint"))) +
             const_name<sizeof(V) * 8>();
  }
  using Taken = stoker::Array<T, N>;
  NB_TYPE_CASTER(Taken, const_name("numpy.typing.NDArray[") + kind() + const_name("]"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept { return value.take(source.ptr()); }
};

// What functions of the core take: the memory of an array, which is held while they run.
template <typename T>
struct type_caster<std::span<T>> : type_caster<stoker::Array<T>> {
  template <typename>
  using Cast = std::span<T>;

  operator std::span<T>() const { return this->value; }
};

}  // namespace nanobind::detail
