#include "../draws.h"

#include "bindings.h"

namespace stoker {
namespace {

struct BoundDraws : Draws {
  Array<const int64_t> cumulated_array, chunk_start_array, chunk_draw_array;
};

}  // namespace

void bind_draws(nb::module_& module) {
  using Input = Array<const int64_t>;
  nb::class_<BoundDraws>(module, "Draws", "The draws of one epoch by integer weights, chunk by chunk.")
      .def(
          "__init__",
          [](BoundDraws* self, Input& cumulated, Input& chunk_starts, Input& chunk_draws, int64_t shift, uint64_t key) {
            auto* draws = new (self) BoundDraws{{cumulated, chunk_starts, chunk_draws, shift, key}, {}, {}, {}};
            draws->cumulated_array = std::move(cumulated);
            draws->chunk_start_array = std::move(chunk_starts);
            draws->chunk_draw_array = std::move(chunk_draws);
          },
          nb::arg("cumulated"), nb::arg("chunk_starts"), nb::arg("chunk_draws"), nb::arg("shift"), nb::arg("key"))
      .def(
          "rows",
          [](const BoundDraws& draws, const Input& chunk, const Input& draw, const Array<int64_t>& out) {
            draws.rows(chunk, draw, out);
          },
          nb::arg("chunk"), nb::arg("draw"), nb::arg("out"), WithoutLock{},
          "Write the row of its chunk that each draw takes. Shape [B] each.");
}

}  // namespace stoker
