#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <vector>

#include "../hash.h"
#include "bindings.h"
#include "exported_batch.h"

namespace stoker {
namespace {

// Of fewer bytes it takes longer to get the interpreter's lock back than to hash them.
constexpr size_t kFewBytes = 64 << 10;

}  // namespace

void bind_columns(nb::module_& module) {
  module.def(
      "hash_strings",
      [](const Array<const uint8_t>& data, const Array<const int64_t>& offsets, uint64_t num_buckets,
         const Array<int64_t>& out) {
        if (offsets.size() != out.size() + 1 || !num_buckets)
          throw std::invalid_argument("there must be an offset more than strings, and a bucket at least");
        bool is_done;
        if (data.size() < kFewBytes) {
          is_done = hash_strings(data, offsets, num_buckets, out);
        } else {
          nb::gil_scoped_release without_lock;
          is_done = hash_strings(data, offsets, num_buckets, out);
        }
        if (!is_done) throw std::out_of_range("a string lies outside of its data");
      },
      nb::arg("data"), nb::arg("offsets"), nb::arg("num_buckets"), nb::arg("out"),
      "Write the bucket of each string: its XXH3 modulo `num_buckets`.");
  nb::class_<ExportedBatch>(module, "ExportedBatch", "A batch that Arrow exported by the C data interface.")
      .def(nb::init<nb::capsule>(), nb::arg("array"))
      .def("with_nulls",
           [](const ExportedBatch& self, const Array<const int64_t>& columns) {
             std::vector<size_t> found;  // places among the columns that were asked for
             for (size_t i = 0; i < columns.size(); ++i)
               if (self.column(static_cast<size_t>(columns.data()[i])).null_count) found.push_back(i);
             return found;
           },
           nb::arg("columns"), "Return which of some columns, by their numbers [C], may have nulls: their places in `columns`.");
}

}  // namespace stoker
