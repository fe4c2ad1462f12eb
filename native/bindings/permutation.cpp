#include "../permutation.h"

#include "bindings.h"

namespace stoker {
namespace {

// So many values take 30 microseconds, and to get the lock back from threads that make batches takes as long.
constexpr size_t kFew = 4096;

}  // namespace

void bind_permutation(nb::module_& module) {
  module.def(
      "permute",
      [](const Array<const int64_t>& index, int64_t start, uint64_t size, uint64_t key, const Array<int64_t>& out) {
        if (index.size() <= kFew) return permute(index, start, size, key, out);
        nb::gil_scoped_release without_lock;
        permute(index, start, size, key, out);
      },
      nb::arg("index"), nb::arg("start"), nb::arg("size"), nb::arg("key"), nb::arg("out"),
      "Write where each index goes among `size` values; both count from `start`.");
}

}  // namespace stoker
