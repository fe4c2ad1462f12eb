#include "../read.h"

#include "bindings.h"

namespace stoker {

void bind_read(nb::module_& module) {
  module.def(
      "read_pieces",
      [](const Matrix<const int64_t>& pieces, const Array<uint8_t>& target, size_t first, size_t step,
         size_t page_bytes) {
        static_assert(sizeof(FilePiece) == 4 * sizeof(int64_t));
        if (pieces.shape(1) != 4) throw std::invalid_argument("pieces must have the shape [N, 4]");
        const std::span<const FilePiece> all{reinterpret_cast<const FilePiece*>(pieces.data()), pieces.shape(0)};
        nb::gil_scoped_release without_lock;
        return read_pieces(all, target, first, step, page_bytes);
      },
      nb::arg("pieces"), nb::arg("target"), nb::arg("first"), nb::arg("step"), nb::arg("page_bytes"),
      "Read pieces `first`, `first + step`, ... of files: descriptor, offset, bytes and place in the target [N, 4].\n"
      "Returns which could not be read whole, or how many there are.");
}

}  // namespace stoker
