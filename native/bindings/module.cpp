#include "bindings.h"

NB_MODULE(_native, module) {
  // Objects in Python's caches live as long as the process: nothing to warn of at its end.
  nb::set_leak_warnings(false);
  module.doc() = "Stoker's native core: plain data in, plain data out.";
  stoker::bind_parquet(module);
  stoker::bind_cache(module);
  stoker::bind_gather(module);
  stoker::bind_order(module);
  stoker::bind_trace_events(module);
  stoker::bind_window(module);
}
