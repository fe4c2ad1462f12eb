#include "../order.h"

#include <stdexcept>

#include "../permutation.h"
#include "bindings.h"

namespace stoker {
namespace {

using Input = std::span<const int64_t>;
using Output = std::span<int64_t>;

// So many values take 30 microseconds, and to get the lock back from threads that make batches takes as long.
constexpr size_t kFew = 4096;

}  // namespace

void bind_order(nb::module_& module) {
  module.def("permute", [](Input index, int64_t start, uint64_t size, uint64_t key, Output out) {
               without_lock(index.size() > kFew, [&] { permute(index, start, size, key, out); });
             }, "index"_a, "start"_a, "size"_a, "key"_a, "out"_a,
             "Write where each index goes among `size` values; both count from `start`.");
  module.def("unpermute", [](Input place, int64_t start, uint64_t size, uint64_t key, Output out) {
               without_lock(place.size() > kFew, [&] { unpermute(place, start, size, key, out); });
             }, "place"_a, "start"_a, "size"_a, "key"_a, "out"_a,
             "Write the index that goes to each place: the inverse of `permute`.");
  module.def("mix_blocks", [](const Matrix<const int64_t>& counts, std::span<const uint64_t> keys, int64_t first, Output out) {
               if (counts.shape(0) != keys.size()) throw std::invalid_argument("a block needs one key");
               without_lock(out.size() > kFew, [&] { mix_blocks(counts, counts.shape(1), keys, first, out); });
             }, "counts"_a, "keys"_a, "first"_a, "out"_a,
             "Write the component at each place from `first` on, of blocks of counts[j] places that are permuted by keys[j].");
  module.def("group_places", &group_places, "component"_a, "num_components"_a, "out"_a,
             "Write the places of component 0, ascending, then those of component 1, and so on.");

  nb::class_<WindowOrder>(module, "WindowOrder",
                          "Which slot and row stand at the positions [start, stop) of a shuffle window.")
      .def(nb::init<int64_t, int64_t, std::span<const uint64_t>, bool, Input, Input, std::span<const int32_t>, int, int64_t>(),
           nb::kw_only(), "start"_a, "stop"_a, "keys"_a, "shuffle"_a, "slot_starts"_a, "shifts"_a, "bucket_slots"_a,
           "bucket_bits"_a, "first_slot"_a,  // which keeps its arrays
           nb::keep_alive<1, 4>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>())
      .def("locate", [](const WindowOrder& order, Input position, Output slot, Output row) {
             without_lock(position.size() > kFew, [&] { order.locate(position, slot, row); });
           }, "position"_a, "slot"_a, "row"_a,
           "Write slot, counted from the window's first, and row of each position. Shape [B] each.")
      .def("locate_range", [](const WindowOrder& order, int64_t first, Output slot, Output row) {
             without_lock(row.size() > kFew, [&] { order.locate_range(first, slot, row); });
           }, "first"_a, "slot"_a, "row"_a,
           "Write the same for consecutive positions from `first` on, as many as there is room for.");

  nb::class_<Draws>(module, "Draws", "The draws of one epoch by integer weights, chunk by chunk.")
      .def(nb::init<Input, Input, Input, int64_t, uint64_t>(), "cumulated"_a, "chunk_starts"_a, "chunk_draws"_a, "shift"_a,
           "key"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("rows", &Draws::rows, "chunk"_a, "draw"_a, "out"_a, WithoutLock{},
           "Write the row of its chunk that each draw takes. Shape [B] each.");
}

}  // namespace stoker
