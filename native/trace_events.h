// Reads a Chrome trace: JSON bytes in, one row of integers an event out, at the speed of memory.
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
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stoker {

// Columns of a row. Times are nanoseconds; category, name, group, members and label are numbers of texts, -1 without one.
enum TraceColumn { kPhase, kCategory, kName, kPid, kTid, kStart, kLength, kCorrelation, kBytes, kSequence, kGroup,
                   kMembers, kLabel, kFlow, kNumTraceColumns };

// Stands for a number that is not there.
inline constexpr int64_t kMissing = INT64_MIN;
// A pid or tid from here on is the number of a text, plus this.
inline constexpr int64_t kText = int64_t{1} << 62;

using Bytes = std::span<const uint8_t>;

class TraceScanner {
 public:
  // Takes the next bytes of a file, however it is cut.
  void feed(Bytes block, bool is_last);

  // `kNumTraceColumns` numbers for each event that ended in the bytes fed last.
  const std::vector<int64_t>& rows() const { return rows_; }
  // Texts in the order in which they first came: their numbers are their places.
  const std::deque<std::string>& texts() const { return texts_; }
  // JSON of the members of the outermost object that are of use, by key; others, which can be large, are not kept.
  const std::map<std::string, std::string>& header() const { return header_; }
  // Whether what begins the file is no JSON object or array.
  bool is_none() const { return place_ == kNoTrace || (place_ == kBroken && !has_events_); }
  // Whether there was anything but white space.
  bool has_begun() const { return place_ != kBegin; }
  // Whether the array of events was found.
  bool has_events() const { return has_events_; }
  // Whether all was read up to the end; that of a bare array is optional, for writers that cannot end cleanly.
  bool has_end() const { return place_ == kEnd || (is_bare_ && left_.empty()); }
  // Events that made no sense.
  int64_t num_damaged() const { return num_damaged_; }
  // Events whose time is too large for a number of microseconds.
  int64_t num_beyond() const { return num_beyond_; }

 private:
  bool step(Bytes data, int64_t& at, bool is_last);
  bool begin_member(Bytes data, int64_t& at);
  bool skip_member(Bytes data, int64_t& at);
  bool take_event(Bytes data, int64_t& at, bool is_last);
  int64_t read_event(Bytes data, int64_t at, int64_t* row);
  int64_t number_of(std::string_view text);

  // Where it is: before the first character, between members of the outermost object, in the value of one, in the array
  // of events, behind all of it; or at what is no JSON, or at a first character that begins neither object nor array.
  enum Place { kBegin, kMember, kValue, kEvents, kEnd, kBroken, kNoTrace };

  Place place_ = kBegin;
  bool is_bare_ = false, has_events_ = false;
  std::vector<uint8_t> left_;
  std::vector<int64_t> rows_;
  std::string key_;  // of the member whose value is read
  int64_t depth_ = 0;
  bool is_in_string_ = false, is_escaped_ = false;
  std::map<std::string, std::string> header_;
  std::deque<std::string> texts_;  // a deque, so that the keys below stay where they are
  std::unordered_map<std::string_view, int64_t> numbers_;
  int64_t num_damaged_ = 0, num_beyond_ = 0;
};

}  // namespace stoker
