// Reads trace events: JSON bytes in, one row of integers an event out, at the speed of memory.
//
//   {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 12.5, "dur": 3, "args": {"correlation": 4}}
//     phase      category         name            pid       tid       start      length          correlation
//
// It forgives what profilers write (trailing commas, NaN, control characters, quotes that nobody escaped) and goes on
// behind an event that makes no sense. A library that builds a value an event would take 10 microseconds for each; a
// trace of a gigabyte has three million.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace stoker {

// Columns of a row. Times are nanoseconds; category, name, group, members and label are numbers of texts, -1 without one.
enum TraceColumn { kPhase, kCategory, kName, kPid, kTid, kStart, kLength, kCorrelation, kBytes, kSequence, kGroup,
                   kMembers, kLabel, kFlow, kNumTraceColumns };

// Stands for a number that is not there.
inline constexpr int64_t kMissing = INT64_MIN;
// A pid or tid from here on is the number of a text, plus this.
inline constexpr int64_t kText = int64_t{1} << 62;

using Bytes = std::span<const uint8_t>;

// Returns the place behind the JSON value at `at`; -1 where it does not end in these bytes, -2 where none begins.
int64_t skip_value(Bytes data, int64_t at);

// Returns a number of microseconds, in quotes or not, as nanoseconds: exact to the third decimal, then rounded.
int64_t parse_ns(Bytes text);

// Returns where the next event begins behind damage, an object in a list with a key that events have; or -1.
int64_t find_event(Bytes data, int64_t at);

class TraceScanner {
 public:
  enum Stop { kMore, kEnded, kRowsFull };
  struct Found {
    size_t num_rows;
    int64_t at;  // up to which all is read
    Stop why;    // it needs more bytes, the array ended, or there is no room for rows
  };

  // Reads events from data[at:], inside a JSON array, into rows of `kNumTraceColumns` numbers.
  Found scan(Bytes data, int64_t at, std::span<int64_t> rows);

  // Texts in the order in which they first came: their numbers are their places.
  const std::deque<std::string>& texts() const { return texts_; }
  // Events that made no sense.
  int64_t num_damaged() const { return num_damaged_; }

 private:
  int64_t read_event(Bytes data, int64_t at, int64_t* row);
  int64_t number_of(std::string_view text);

  std::deque<std::string> texts_;  // a deque, so that the keys below stay where they are
  std::unordered_map<std::string_view, int64_t> numbers_;
  int64_t num_damaged_ = 0;
};

}  // namespace stoker
