// Windows, their order and what was found in them as Python holds them. Whoever gathers without Python keeps the window itself.
#pragma once

#include <memory>
#include <stdexcept>

#include "../gather.h"
#include "../order.h"
#include "arrays.h"

namespace stoker {

// Lets go of maps without the interpreter's lock, which is held: to unmap a gigabyte takes 50 milliseconds.
template <typename Held>
void unmap(Held held) {
  nb::gil_scoped_release without_lock;
  const Held gone = std::move(held);
}

// The order of a window, with the arrays that it points into.
struct BoundWindowOrder : WindowOrder {
  Array<const int64_t> slot_start_array, shift_array;
  Array<const int32_t> bucket_slot_array;
};

struct BoundWindow {
  std::shared_ptr<const Window> window;  // none once it is closed

  ~BoundWindow() { close(); }
  void close() {
    if (window) unmap(std::exchange(window, nullptr));
  }

  const std::shared_ptr<const Window>& get() const {
    if (!window) throw std::invalid_argument("the window was closed");
    return window;
  }
};

// Where the lists of a batch lie, with the array that gets their offsets.
struct BoundLists : FoundLists {
  Matrix<int64_t> offset_array;
  size_t num_bytes = 0;

  BoundLists(const ListGroup& group, size_t num, Matrix<int64_t> array)
      : FoundLists(group, num, checked(array, group, num)), offset_array(std::move(array)) {}

  static int64_t* checked(const Matrix<int64_t>& array, const ListGroup& group, size_t num) {
    if (array.shape(0) != group.value_bytes.size() || array.shape(1) != num + 1) {
      throw std::invalid_argument("offsets must have the shape [fields, rows + 1]");
    }
    return array.data();
  }
  void lay_out_fields(const std::vector<int64_t>& chosen) { num_bytes = lay_out(chosen); }
  void descend_into(const Array<int64_t>& inner_offsets) {
    nb::gil_scoped_release without_lock;
    descend(inner_offsets.data());
    num_bytes = lay_out();
  }
  void copy_into(const Array<uint8_t>& out) const {
    if (out.size() < num_bytes) throw std::invalid_argument("there is no room for all lists");
    nb::gil_scoped_release without_lock;
    copy(out.data());
  }
};

}  // namespace stoker
