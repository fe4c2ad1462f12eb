// Arrays that Python hands over: memory by the buffer protocol, nothing copied, never another dtype than is asked for.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace nb = nanobind;

namespace stoker {

// A contiguous array of T with N dimensions, held for as long as this lives; read-only where T is const.
// Made and destroyed with the interpreter's lock; its memory may be used without.
template <typename T, int N = 1>
class Array {
 public:
  Array() = default;
  Array(Array&& other) noexcept { swap(other); }
  Array& operator=(Array&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Array() {
    if (view_.obj) PyBuffer_Release(&view_);
  }

  T* data() const { return static_cast<T*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len) / sizeof(T); }
  size_t shape(int dimension) const { return static_cast<size_t>(shape_[dimension]); }
  std::span<T> span() const { return {data(), size()}; }
  operator std::span<T>() const { return span(); }
  nb::object owner() const { return nb::borrow(view_.obj); }
  std::span<T> row(size_t i) const
    requires(N == 2)
  {
    return {data() + i * shape(1), shape(1)};
  }

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
    for (int i = 0; i < N; ++i) shape_[i] = view_.shape[i];
    return true;
  }

 private:
  static bool is_of_kind(const char* format) {
    if (!format) return sizeof(T) == 1;
    if (std::strchr("@=<", *format)) ++format;
    using V = std::remove_const_t<T>;
    const char* kinds = std::is_floating_point_v<V> ? "efdg" : std::is_signed_v<V> ? "bhilqn" : "?cBHILQN";
    return *format && format[1] == '\0' && std::strchr(kinds, *format);
  }

  void swap(Array& other) noexcept {
    std::swap(view_, other.view_);
    for (int i = 0; i < N; ++i) std::swap(shape_[i], other.shape_[i]);
  }

  Py_buffer view_{};
  Py_ssize_t shape_[N]{};
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

}  // namespace nanobind::detail
