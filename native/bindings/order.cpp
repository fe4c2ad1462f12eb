#include "../order.h"

#include "../permutation.h"
#include "bindings.h"
#include "window.h"

namespace stoker {
namespace {

using Input = Array<const int64_t>;
using Output = Array<int64_t>;

// So many values take 30 microseconds, and to get the lock back from threads that make batches takes as long.
constexpr size_t kFew = 4096;

struct BoundDraws : Draws {
  Input cumulated_array, chunk_start_array, chunk_draw_array;
};

}  // namespace

void bind_order(nb::module_& module) {
  module.def("permute", [](const Input& index, int64_t start, uint64_t size, uint64_t key, const Output& out) {
               without_lock(index.size() > kFew, [&] { permute(index, start, size, key, out); });
             }, "index"_a, "start"_a, "size"_a, "key"_a, "out"_a,
             "Write where each index goes among `size` values; both count from `start`.");
  module.def("unpermute", [](const Input& place, int64_t start, uint64_t size, uint64_t key, const Output& out) {
               without_lock(place.size() > kFew, [&] { unpermute(place, start, size, key, out); });
             }, "place"_a, "start"_a, "size"_a, "key"_a, "out"_a,
             "Write the index that goes to each place: the inverse of `permute`.");
  module.def("mix_blocks", [](const Matrix<const int64_t>& counts, const Array<const uint64_t>& keys, int64_t first,
                              const Output& out) {
               if (counts.shape(0) != keys.size()) throw std::invalid_argument("a block needs one key");
               without_lock(out.size() > kFew, [&] { mix_blocks(counts, counts.shape(1), keys, first, out); });
             }, "counts"_a, "keys"_a, "first"_a, "out"_a,
             "Write the component at each place from `first` on, of blocks of counts[j] places that are permuted by keys[j].");
  module.def("group_places", [](const Input& component, size_t num_components, const Output& out) {
               group_places(component, num_components, out);
             }, "component"_a, "num_components"_a, "out"_a,
             "Write the places of component 0, ascending, then those of component 1, and so on.");

  nb::class_<BoundWindowOrder>(module, "WindowOrder",
                               "Which slot and row stand at the positions [start, stop) of a shuffle window.")
      .def("__init__", [](BoundWindowOrder* self, int64_t start, int64_t stop, Array<const uint64_t>& keys,
                          bool shuffle, Input& slot_starts, Input& shifts, Array<const int32_t>& bucket_slots,
                          int bucket_bits, int64_t first_slot) {
             new (self) BoundWindowOrder{
                 {start, stop, keys, shuffle, slot_starts, shifts, bucket_slots, bucket_bits, first_slot},
                 std::move(keys), std::move(slot_starts), std::move(shifts), std::move(bucket_slots)};
           }, nb::kw_only(), "start"_a, "stop"_a, "keys"_a, "shuffle"_a, "slot_starts"_a, "shifts"_a, "bucket_slots"_a,
           "bucket_bits"_a, "first_slot"_a)
      .def_ro("start", &BoundWindowOrder::start)
      .def_ro("stop", &BoundWindowOrder::stop)
      .def("locate", [](const BoundWindowOrder& order, const Input& position, const Output& slot, const Output& row) {
             without_lock(position.size() > kFew, [&] { order.locate(position, slot, row); });
           }, "position"_a, "slot"_a, "row"_a,
           "Write slot, counted from the window's first, and row of each position. Shape [B] each.")
      .def("locate_range", [](const BoundWindowOrder& order, int64_t first, const Output& slot, const Output& row) {
             without_lock(row.size() > kFew, [&] { order.locate_range(first, slot, row); });
           }, "first"_a, "slot"_a, "row"_a,
           "Write the same for consecutive positions from `first` on, as many as there is room for.");

  nb::class_<BoundDraws>(module, "Draws", "The draws of one epoch by integer weights, chunk by chunk.")
      .def("__init__", [](BoundDraws* self, Input& cumulated, Input& chunk_starts, Input& chunk_draws, int64_t shift,
                          uint64_t key) {
             new (self) BoundDraws{{cumulated, chunk_starts, chunk_draws, shift, key},
                                   std::move(cumulated), std::move(chunk_starts), std::move(chunk_draws)};
           }, "cumulated"_a, "chunk_starts"_a, "chunk_draws"_a, "shift"_a, "key"_a)
      .def("rows", [](const BoundDraws& draws, const Input& chunk, const Input& draw, const Output& out) {
             draws.rows(chunk, draw, out);
           }, "chunk"_a, "draw"_a, "out"_a, WithoutLock{}, "Write the row of its chunk that each draw takes. Shape [B] each.");
}

}  // namespace stoker
