#include <stdexcept>

#include "../hash.h"
#include "bindings.h"

namespace stoker {
namespace {

// Of fewer bytes it takes longer to get the interpreter's lock back than to hash them.
constexpr size_t kFewBytes = 64 << 10;

// Source: the Arrow C data interface, https://arrow.apache.org/docs/format/CDataInterface.html.
struct ArrowArray {
  int64_t length, null_count, offset, num_buffers, num_children;
  const void** buffers;
  ArrowArray** children;
};

// Writes nulls, offset and address of the second buffer (0: there is none) of every column of an exported batch.
bool read_columns(const nb::capsule& exported, const Array<int64_t>& nulls, const Array<int64_t>& offsets,
                  const Array<int64_t>& addresses) {
  const auto* batch = static_cast<const ArrowArray*>(exported.data("arrow_array"));
  const size_t num = nulls.size();
  if (offsets.size() != num || addresses.size() != num) throw std::invalid_argument("arrays must be of one size");
  if (batch->num_children != static_cast<int64_t>(num)) return false;
  for (size_t i = 0; i < num; ++i) {
    const ArrowArray& column = *batch->children[i];
    nulls.data()[i] = column.null_count;
    offsets.data()[i] = column.offset;
    addresses.data()[i] = column.num_buffers > 1 ? reinterpret_cast<int64_t>(column.buffers[1]) : 0;
  }
  return true;
}

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
  module.def("read_columns", &read_columns, nb::arg("exported"), nb::arg("nulls"), nb::arg("offsets"),
             nb::arg("addresses"),
             "Write nulls, offset and address of the values of every column of an exported batch; False where they are "
             "not as many as there is room for.");
}

}  // namespace stoker
