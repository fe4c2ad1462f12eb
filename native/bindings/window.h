// Windows as Python holds them. Whoever gathers without the interpreter's lock keeps the window itself.
#pragma once

#include <memory>
#include <stdexcept>

#include "../gather.h"
#include "arrays.h"

namespace stoker {

// Lets go of maps without the interpreter's lock, which is held: to unmap a gigabyte takes 50 milliseconds.
template <typename Held>
void unmap(Held held) {
  nb::gil_scoped_release without_lock;
  const Held gone = std::move(held);
}

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
