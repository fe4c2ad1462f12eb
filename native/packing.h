// Rows of one length that are packed with documents: which document goes where, and its values copied there.
//
//   packed row   │ segment 1 ─── end │ segment 2 ───── end │ padding │     a segment is a document, or a part of one
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stoker {

// Cuts documents longer than a row at its length, and gives the pieces to rows, the longest first, each to the row that
// it leaves the least room in; of several, to the one that was filled last. Rows are numbered by their first document.
//
// Writes the document of each piece and its first token there, row by row, and each row's first piece and the end.
// `starts` has room for a row a piece and one more. Returns the number of rows.
//
// Source: Ding et al., "Fewer truncations improve language modeling", ICML 2024: best-fit packing.
size_t best_fit(std::span<const int64_t> lengths, int64_t length, std::span<int64_t> document, std::span<int64_t> first,
                std::span<int64_t> starts);

// What packed rows are made of: segments one behind the other.
struct PackedRows {
  std::span<const int64_t> num;      // tokens of each segment, its end included
  std::span<const int64_t> offsets;  // first segment of each row, and the end
  size_t length;                     // tokens of a row

  size_t num_rows() const { return offsets.size() - 1; }
};

// Writes each token's segment, counted from 1 in its row, and its place in that segment; 0 is padding.
void fill_places(const PackedRows& rows, std::span<int32_t> ids, std::span<int32_t> positions);

// Copies the values of a field to their tokens: of each segment `num_values`, from value `first` on of the list of its
// document. What a segment has more tokens than values gets `end`, and what is left of a row `pad`; both are one value
// each, whose size in bytes they tell.
void pack_values(const PackedRows& rows, const uint8_t* const* lists, std::span<const int64_t> first,
                 std::span<const int64_t> num_values, std::span<const uint8_t> end, std::span<const uint8_t> pad,
                 std::span<uint8_t> out);

}  // namespace stoker
