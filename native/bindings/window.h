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
  Array<const uint64_t> key_array;
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

}  // namespace stoker
