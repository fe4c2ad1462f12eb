#include "../packing.h"

#include "bindings.h"
#include "window.h"

namespace stoker {

void bind_packing(nb::module_& module) {
  using Input = Array<const int64_t>;
  module.def(
      "best_fit",
      [](const Input& lengths, int64_t length, const Array<int64_t>& document, const Array<int64_t>& first,
         const Array<int64_t>& starts) { return best_fit(lengths, length, document, first, starts); },
      nb::arg("lengths"), nb::arg("length"), nb::arg("document"), nb::arg("first"), nb::arg("starts"), WithoutLock{},
      "Write document and first token of each piece, row by row, and each row's first piece; return how many rows.");
  module.def(
      "fill_places",
      [](const Input& num, const Input& offsets, const Matrix<int32_t>& ids, const Matrix<int32_t>& positions) {
        fill_places({num, offsets, ids.shape(1)}, ids, positions);
      },
      nb::arg("num"), nb::arg("offsets"), nb::arg("ids"), nb::arg("positions"), WithoutLock{},
      "Write each token's segment, counted from 1 in its packed row, and its place in that segment; 0 is padding.");
  module.def(
      "pack_values",
      [](const Input& num, const Input& offsets, size_t length, const BoundLists& lists, size_t field,
         const Input& first, const Input& num_values, const Array<const uint8_t>& end, const Array<const uint8_t>& pad,
         const Array<uint8_t>& out) {
        if (field >= lists.num_fields || first.size() != lists.num_rows || num_values.size() != lists.num_rows)
          throw std::invalid_argument("there must be a list of this field for each segment");
        pack_values({num, offsets, length}, {lists.sources.get() + field * lists.num_rows, first, num_values}, end, pad, out);
      },
      nb::arg("num"), nb::arg("offsets"), nb::arg("length"), nb::arg("lists"), nb::arg("field"), nb::arg("first"),
      nb::arg("num_values"), nb::arg("end"), nb::arg("pad"), nb::arg("out"), WithoutLock{},
      "Copy a field's values to their tokens, of each segment's list from value `first` on; then `end`s, then `pad`s.");
}

}  // namespace stoker
