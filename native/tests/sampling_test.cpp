// The order of windows and mixtures, draws by weight, and packed rows: small ones, worked out by hand or another way.
#include <algorithm>
#include <map>
#include <numeric>

#include "check.h"
#include "order.h"
#include "packing.h"
#include "permutation.h"

namespace {

using Numbers = std::vector<int64_t>;

// Chunks of 5, 300, 1 and 94 samples, the second window of an epoch whose first has 10: slots 2 to 5.
struct Window {
  Numbers slot_starts{0, 4, 10, 15, 315, 316, 410}, shifts{-10, -15, -315, -316};
  std::vector<int32_t> bucket_slots;
  std::vector<uint64_t> keys;
  stoker::WindowOrder order;

  explicit Window(bool shuffles, int bucket_bits, std::vector<uint64_t> its_keys = {77}) : keys(std::move(its_keys)) {
    for (int64_t place = 0; place <= 410 + (int64_t{1} << bucket_bits); place += int64_t{1} << bucket_bits) {
      const auto after = std::upper_bound(slot_starts.begin(), slot_starts.end(), place);
      bucket_slots.push_back(static_cast<int32_t>(after - slot_starts.begin() - 1));
    }
    order = {10, 10 + 400 * static_cast<int64_t>(keys.size()), keys, shuffles, slot_starts, shifts, bucket_slots, bucket_bits, 2};
  }
};

std::vector<std::pair<int64_t, int64_t>> located(const Window& window, int64_t first, size_t num) {
  Numbers slot(num), row(num), positions(num);
  window.order.locate_range(first, slot, row);
  std::iota(positions.begin(), positions.end(), first);
  Numbers slot_again(num), row_again(num);
  window.order.locate(positions, slot_again, row_again);
  CHECK(slot == slot_again && row == row_again);
  std::vector<std::pair<int64_t, int64_t>> found(num);
  for (size_t i = 0; i < num; ++i) found[i] = {slot[i], row[i]};
  return found;
}

}  // namespace

TEST("places are the other way round what a permutation makes of them") {
  for (const size_t size : {1, 2, 256, 257, 5000}) {
    Numbers index(size), places(size);
    std::iota(index.begin(), index.end(), 9);
    stoker::permute(index, 9, size, 3, places);
    stoker::unpermute(places, 9, size, 3, places);
    CHECK(places == index);
  }
}

TEST("a window's positions are the samples of its chunks, each once") {
  std::vector<std::pair<int64_t, int64_t>> all;
  const int64_t sizes[] = {5, 300, 1, 94};
  for (int64_t slot = 0; slot < 4; ++slot)
    for (int64_t row = 0; row < sizes[slot]; ++row) all.push_back({slot, row});
  for (const int bucket_bits : {0, 3, 8}) {
    CHECK(located(Window(false, bucket_bits), 10, 400) == all);
    auto shuffled = located(Window(true, bucket_bits), 10, 400);
    CHECK(shuffled != all);
    CHECK(located(Window(true, bucket_bits), 50, 7) == std::vector(shuffled.begin() + 40, shuffled.begin() + 47));
    std::sort(shuffled.begin(), shuffled.end());
    CHECK(shuffled == all);
  }
  CHECK(located(Window(true, 3), 20, 0).empty());
}

TEST("a window of several keys is one window after the other, each shuffled by its own") {
  for (const bool shuffles : {false, true}) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (const uint64_t key : {1, 2, 3})
      for (const auto& one : located(Window(shuffles, 3, {key}), 10, 400)) all.push_back(one);
    CHECK(located(Window(shuffles, 3, {1, 2, 3}), 10, 1200) == all);
    CHECK(located(Window(shuffles, 3, {1, 2, 3}), 405, 410) == std::vector(all.begin() + 395, all.begin() + 805));
  }
}

TEST("blocks have their number of each component, and a part of them is what it is in the whole") {
  const Numbers counts{3, 0, 2, 0, 0, 0, 1, 600, 4};
  const std::vector<uint64_t> keys{1, 2, 3};
  Numbers all(610), part(100), grouped(610);
  stoker::mix_blocks(counts, 3, keys, 0, all);
  stoker::mix_blocks(counts, 3, keys, 2, part);
  CHECK(std::equal(part.begin(), part.end(), all.begin() + 2));
  CHECK_EQUAL(std::count(all.begin(), all.begin() + 5, 0), 3);
  CHECK_EQUAL(std::count(all.begin() + 5, all.end(), 1), 600);
  stoker::group_places(all, 3, grouped);
  for (size_t i = 1; i < grouped.size(); ++i)
    CHECK(std::pair(all[grouped[i - 1]], grouped[i - 1]) < std::pair(all[grouped[i]], grouped[i]));
}

TEST("a row is drawn the floor or the ceiling of its share") {
  for (const int64_t scale : {int64_t{1}, int64_t{1} << 52}) {
    Numbers weights(100);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = scale * static_cast<int64_t>(i * i % 17);
    Numbers cumulated(weights.size() + 1);
    std::partial_sum(weights.begin(), weights.end(), cumulated.begin() + 1);
    const int64_t total = cumulated.back(), shift = total / 3;
    const Numbers chunk_starts{0, 40, 40, 100};
    Numbers chunk_draws;
    for (const int64_t start : chunk_starts) {
      int64_t draw = 0;
      __extension__ using Wide = __int128;
      while (draw < 100 && (Wide{draw} * total + shift) / 100 < cumulated[start]) ++draw;
      chunk_draws.push_back(start == 100 ? 100 : draw);
    }
    const stoker::Draws draws{cumulated, chunk_starts, chunk_draws, shift, 5};
    Numbers seen(100), chunk(1), draw(1), row(1);
    for (chunk[0] = 0; chunk[0] < 3; ++chunk[0]) {
      for (draw[0] = 0; draw[0] < chunk_draws[chunk[0] + 1] - chunk_draws[chunk[0]]; ++draw[0]) {
        draws.rows(chunk, draw, row);
        ++seen[chunk_starts[chunk[0]] + row[0]];
      }
    }
    for (size_t i = 0; i < seen.size(); ++i) {
      const double share = 100.0 * static_cast<double>(weights[i]) / static_cast<double>(total);
      CHECK(static_cast<double>(seen[i]) > share - 1 && static_cast<double>(seen[i]) < share + 1);
    }
  }
}

TEST("pieces fill rows of one length, each piece once") {
  for (const int64_t length : {1, 7, 64, 100}) {
    Numbers lengths;
    for (int64_t i = 0; i < 200; ++i) lengths.push_back(i * i % 151);
    size_t num_pieces = 0;
    for (const int64_t tokens : lengths) num_pieces += static_cast<size_t>((tokens + length - 1) / length);
    Numbers document(num_pieces), first(num_pieces), starts(num_pieces + 1);
    const size_t num_rows = stoker::best_fit(lengths, length, document, first, starts);
    CHECK_EQUAL(starts[num_rows], static_cast<int64_t>(num_pieces));
    std::map<std::pair<int64_t, int64_t>, int> seen;
    for (size_t row = 0; row < num_rows; ++row) {
      int64_t tokens = 0;
      for (int64_t piece = starts[row]; piece < starts[row + 1]; ++piece) {
        tokens += std::min(length, lengths[document[piece]] - first[piece]);
        CHECK_EQUAL(++seen[std::pair(document[piece], first[piece])], 1);
      }
      CHECK(tokens > 0 && tokens <= length);
    }
    CHECK_EQUAL(seen.size(), num_pieces);
  }
  Numbers no_rows(1);
  CHECK_EQUAL(stoker::best_fit({}, 5, {}, {}, no_rows), size_t{0});
}

TEST("tokens, ends and padding stand where they belong, in few rows and in many") {
  for (const size_t num_rows : {1, 3, 600}) {
    const size_t length = 1000;
    Numbers num, num_values, offsets{0}, first;
    for (size_t row = 0; row < num_rows; ++row) {
      for (const int64_t tokens : {300, 1, 0, 650}) {
        num.push_back(tokens);
        num_values.push_back(tokens - (tokens == 650));  // the last one has an end
        first.push_back(static_cast<int64_t>(row % 7));
      }
      offsets.push_back(static_cast<int64_t>(num.size()));
    }
    std::vector<uint8_t> memory(2000);
    std::iota(memory.begin(), memory.end(), uint8_t{0});
    const stoker::PackedRows rows{num, offsets, length};
    const std::vector<uint8_t> end{201, 202, 203}, pad{101, 102, 103};
    std::vector<uint8_t> out(num_rows * length * 3);
    const std::vector<const uint8_t*> lists(num.size(), memory.data());
    stoker::pack_values(rows, lists.data(), first, num_values, end, pad, out);
    std::vector<int32_t> ids(num_rows * length), positions(num_rows * length);
    stoker::fill_places(rows, ids, positions);
    for (size_t row = 0; row < num_rows; ++row) {
      const uint8_t* values = out.data() + row * length * 3;
      const uint8_t* source = memory.data() + row % 7 * 3;
      CHECK(std::equal(values, values + 900, source));
      CHECK(std::equal(values + 900, values + 903, source));
      CHECK(std::equal(values + 903, values + 903 + 649 * 3, source));
      CHECK(std::equal(values + 950 * 3, values + 951 * 3, end.data()));
      for (size_t token = 951; token < length; ++token) CHECK(std::equal(pad.begin(), pad.end(), values + token * 3));
      const int32_t *id = ids.data() + row * length, *position = positions.data() + row * length;
      CHECK(id[299] == 1 && position[299] == 299 && id[300] == 2 && position[300] == 0);
      CHECK(id[301] == 4 && position[950] == 649 && id[951] == 0 && position[999] == 0);
    }
  }
}
