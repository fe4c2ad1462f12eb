// What each file of bindings adds to the module `stoker._native`.
#pragma once

#include "arrays.h"

namespace stoker {

using namespace nb::literals;

void bind_parquet(nb::module_& module);
void bind_cache(nb::module_& module);
void bind_gather(nb::module_& module);
void bind_order(nb::module_& module);
void bind_trace_events(nb::module_& module);
void bind_window(nb::module_& module);

// The interpreter's lock is given up while a function runs. To get it back takes as long as it takes beside threads
// that hold it, so what is over in microseconds keeps it.
using WithoutLock = nb::call_guard<nb::gil_scoped_release>;

// Does so where the work is long.
template <typename Work>
auto without_lock(bool is_long, Work work) {
  if (!is_long) return work();
  nb::gil_scoped_release without;
  return work();
}

}  // namespace stoker
