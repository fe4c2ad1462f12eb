#include "trace_events.h"

#include <algorithm>
#include <cmath>

namespace stoker {
namespace {

constexpr int64_t kIncomplete = -1, kBrokenEvent = -2;
// As many nanoseconds as fit, and what stands for more.
constexpr int64_t kMaxNs = 9'200'000'000'000'000'000, kBeyond = INT64_MAX;
// A broken event is given up on when its end is not found within so many bytes, or brackets in it are nested deeper; a
// broken key as well. What waits for more bytes is read again with each block: without ends, that would be quadratic.
constexpr int64_t kMaxEventBytes = 32 << 20, kMaxDepth = 256, kMaxKeyBytes = 64 << 10;
constexpr size_t kMaxHeaderBytes = 16 << 20;

bool is_space(int c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(int c) { return c >= '0' && c <= '9'; }
bool is_open(int c) { return c == '{' || c == '['; }
bool is_close(int c) { return c == '}' || c == ']'; }
int64_t size_of(Bytes data) { return static_cast<int64_t>(data.size()); }

// Returns the place behind white space, and behind what else is passed.
int64_t skip_space(Bytes data, int64_t at, char other = ' ') {
  while (at < size_of(data) && (is_space(data[at]) || data[at] == other)) ++at;
  return at;
}

// Returns the place behind the string that begins at `at`.
int64_t skip_string(Bytes data, int64_t at) {
  for (++at; at < size_of(data); ++at) {
    if (data[at] == '"') return at + 1;
    if (data[at] == '\\') ++at;
  }
  return kIncomplete;
}

int64_t skip_nested(Bytes data, int64_t at) {
  int64_t depth = 0;
  while (at < size_of(data)) {
    if (data[at] == '"') {
      at = skip_string(data, at);
      if (at < 0) return kIncomplete;
      continue;
    }
    depth += is_open(data[at]) - is_close(data[at]);
    ++at;
    if (depth == 0) return at;
    if (depth > kMaxDepth) return kBrokenEvent;
  }
  return kIncomplete;
}

std::string_view text_in(Bytes data, int64_t begin, int64_t stop) {
  return {reinterpret_cast<const char*>(data.data()) + begin, static_cast<size_t>(stop - begin)};
}

// Returns what is inside the quotes, or the text itself where there are none, without spaces around it.
std::string_view unquoted(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"') text = text.substr(1, text.size() - 2);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Takes a sign off the front of a text; returns -1 or 1.
int take_sign(std::string_view& text) {
  if (text.empty() || (text[0] != '-' && text[0] != '+')) return 1;
  const int sign = text[0] == '-' ? -1 : 1;
  text.remove_prefix(1);
  return sign;
}

int64_t parse_integer(std::string_view text) {
  text = unquoted(text);
  const int sign = take_sign(text);
  if (text.empty()) return kMissing;
  int64_t value = 0;
  for (const char c : text) {
    if (!is_digit(c) || value > 400'000'000'000'000'000) return kMissing;
    value = value * 10 + (c - '0');
  }
  return sign * value;
}

// Returns the place behind the JSON value at `at`, or why there is none.
int64_t skip_value(Bytes data, int64_t at) {
  if (at >= size_of(data)) return kIncomplete;
  if (data[at] == '"') return skip_string(data, at);
  if (is_open(data[at])) return skip_nested(data, at);
  const int64_t begin = at;
  for (; at < size_of(data); ++at) {
    const uint8_t c = data[at];
    if (c == ',' || is_close(c) || is_space(c)) return at > begin ? at : kBrokenEvent;
    if (c == '"' || c == ':' || is_open(c)) return kBrokenEvent;
  }
  return kIncomplete;
}

// Returns a number of microseconds, in quotes or not, as nanoseconds: exact to the third decimal, then rounded.
int64_t parse_ns(std::string_view text) {
  text = unquoted(text);
  const int sign = take_sign(text);
  const auto append = [](int64_t value, int64_t digit) { return value > kMaxNs / 10 ? kBeyond : value * 10 + digit; };
  int64_t exact = 0;  // up to the third decimal
  double all = 0.0;   // all digits
  int num_decimals = -1;
  size_t at = 0, num_digits = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '.' && num_decimals < 0) {
      num_decimals = 0;
      continue;
    }
    if (!is_digit(text[at])) break;
    const int digit = text[at] - '0';
    ++num_digits;
    all = all * 10 + digit;
    if (num_decimals < 3) exact = append(exact, digit);
    else if (num_decimals == 3 && exact != kBeyond) exact += digit >= 5;
    num_decimals += num_decimals >= 0;
  }
  num_decimals = std::max(num_decimals, 0);
  if (num_digits == 0) return kMissing;
  if (at == text.size()) {
    for (; num_decimals < 3; ++num_decimals) exact = append(exact, 0);
    return exact == kBeyond ? kBeyond : sign * exact;
  }
  if (text[at] != 'E' && text[at] != 'e') return kMissing;
  text.remove_prefix(at + 1);
  const int power_sign = take_sign(text);
  if (text.empty()) return kMissing;
  int power = 0;
  for (const char c : text) {
    if (!is_digit(c)) return kMissing;
    power = std::min(power * 10 + (c - '0'), 9999);
  }
  const double value = all * std::pow(10.0, power_sign * power - num_decimals + 3);
  return value < 9.2e18 ? sign * static_cast<int64_t>(std::rint(value)) : kBeyond;
}

// Returns the column of a text that is wanted for a key in "args"; numbers are put into the row.
int read_argument(std::string_view key, std::string_view value, int64_t* row) {
  if (key == "correlation") row[kCorrelation] = parse_integer(value);
  else if (key == "bytes") row[kBytes] = parse_integer(value);
  else if (key == "Seq") row[kSequence] = parse_integer(value);
  else if (key == "Process Group Name") return kGroup;
  else if (key == "Process Group Ranks") return kMembers;
  else if (key == "name" || key == "Collective name") return kLabel;
  return -1;
}

// The same for a key of the event itself.
int read_member(std::string_view key, std::string_view value, int64_t* row) {
  if (key == "ph") row[kPhase] = value.size() == 3 ? static_cast<uint8_t>(value[1]) : 0;
  else if (key == "ts") row[kStart] = parse_ns(value);
  else if (key == "dur") row[kLength] = parse_ns(value);
  else if (key == "cat") return kCategory;
  else if (key == "name") return kName;
  else if (key == "id") row[kFlow] = parse_integer(value);
  else if (key == "pid" || key == "tid") {
    const int column = key == "pid" ? kPid : kTid;
    row[column] = parse_integer(value);
    if (row[column] == kMissing) return column;
  }
  return -1;
}

// Returns where the next event begins behind damage, an object in a list with a key that events have; or -1.
int64_t find_event(Bytes data, int64_t at) {
  static constexpr std::string_view kKeys[] = {"ph", "cat", "name", "pid", "tid", "ts"};
  uint8_t last = 0;
  for (; at < size_of(data); ++at) {
    const uint8_t c = data[at];
    if (c == '{' && (last == ',' || last == '[')) {
      const int64_t inside = skip_space(data, at + 1);
      if (inside + 6 < size_of(data) && data[inside] == '"') {
        int64_t stop = inside + 1;
        while (stop < inside + 6 && data[stop] != '"') ++stop;
        if (std::ranges::find(kKeys, text_in(data, inside + 1, stop)) != std::end(kKeys)) return at;
      }
    }
    if (!is_space(c)) last = c;
  }
  return -1;
}

}  // namespace

int64_t TraceScanner::number_of(std::string_view text) {
  if (const auto found = numbers_.find(text); found != numbers_.end()) return found->second;
  const auto number = static_cast<int64_t>(texts_.size());
  numbers_.emplace(texts_.emplace_back(text), number);
  return number;
}

// Reads the event at `at` into `row`; returns the place behind it, or why not. Members of "args" are read one level
// deeper by the same loop.
int64_t TraceScanner::read_event(Bytes data, int64_t at, int64_t* row) {
  const int64_t end = size_of(data);
  bool is_args = false;
  ++at;
  while (true) {
    at = skip_space(data, at, ',');
    if (at >= end) return kIncomplete;
    if (data[at] == '}' && !is_args) return at + 1;
    if (data[at] == '}') {
      is_args = false;
      ++at;
    } else {
      if (data[at] != '"') return kBrokenEvent;
      const int64_t key_begin = at + 1;
      at = skip_string(data, at);
      if (at < 0) return kIncomplete;
      const std::string_view key = text_in(data, key_begin, at - 1);
      at = skip_space(data, at);
      if (at >= end) return kIncomplete;
      if (data[at] != ':') return kBrokenEvent;
      at = skip_space(data, at + 1);
      if (at >= end) return kIncomplete;
      if (!is_args && data[at] == '{' && key == "args") {
        is_args = true;
        ++at;
        continue;
      }
      const int64_t begin = at;
      at = skip_value(data, at);
      if (at < 0) return at;
      const std::string_view value = text_in(data, begin, at);
      const int column = is_args ? read_argument(key, value, row) : read_member(key, value, row);
      if (column >= 0) {
        const bool is_text = value.front() == '"', is_track = column == kPid || column == kTid;
        if (is_text || is_track) {
          const int64_t number = number_of(is_text ? value.substr(1, value.size() - 2) : value);
          row[column] = is_track ? number + kText : number;
        }
      }
    }
    at = skip_space(data, at);
    if (at >= end) return kIncomplete;
    if (data[at] != ',' && data[at] != '}') return kBrokenEvent;
  }
}

bool TraceScanner::take_event(Bytes data, int64_t& at, bool is_last) {
  if (data[at] == ']') {
    place_ = is_bare_ ? kEnd : kMember;
    ++at;
    return true;
  }
  int64_t row[kNumTraceColumns];
  std::ranges::fill(row, kMissing);
  row[kCategory] = row[kName] = row[kGroup] = row[kMembers] = row[kLabel] = -1;
  row[kPhase] = 0;
  const int64_t stop = data[at] == '{' ? read_event(data, at, row) : kBrokenEvent;
  const bool may_come = !is_last && size_of(data) - at <= kMaxEventBytes;
  if (stop == kIncomplete && may_come) return false;
  if (stop < 0) {
    const int64_t found = find_event(data, at + 1);
    if (found < 0 && may_come) return false;
    ++num_damaged_;
    if (found < 0 && is_last) return false;
    at = found < 0 ? size_of(data) : found;
    return true;
  }
  at = stop;
  if (row[kStart] == kBeyond) {
    ++num_beyond_;
    row[kStart] = kMissing;
  }
  if (row[kLength] == kBeyond) row[kLength] = kMissing;
  if (row[kPhase] != 0) rows_.insert(rows_.end(), std::begin(row), std::end(row));
  return true;
}

// Reads the key at `at`, and goes to its value.
bool TraceScanner::begin_member(Bytes data, int64_t& at) {
  if (data[at] != '"') {
    place_ = data[at] == '}' ? kEnd : kBroken;
    return true;
  }
  const int64_t stop = skip_string(data, at);
  const int64_t colon = stop < 0 ? size_of(data) : skip_space(data, stop);
  const int64_t value = skip_space(data, std::min(colon + 1, size_of(data)));
  const bool is_there = value < size_of(data);
  if (!is_there && size_of(data) - at <= kMaxKeyBytes) return false;
  if (!is_there || data[colon] != ':') {
    place_ = kBroken;
    return true;
  }
  key_ = text_in(data, at + 1, stop - 1);
  at = value;
  if (key_ == "traceEvents" && data[at] == '[') {
    has_events_ = true;
    place_ = kEvents;
    ++at;
    return true;
  }
  header_.erase(key_);
  depth_ = 0;
  place_ = kValue;
  return true;
}

// Goes on in a value, and keeps it where it is of use.
bool TraceScanner::skip_member(Bytes data, int64_t& at) {
  const int64_t begin = at;
  for (; at < size_of(data) && place_ == kValue; ++at) {
    const uint8_t c = data[at];
    if (is_escaped_) is_escaped_ = false;
    else if (is_in_string_ && c == '\\') is_escaped_ = true;
    else if (c == '"') is_in_string_ = !is_in_string_;
    else if (is_in_string_) continue;
    else if (depth_ == 0 && (c == ',' || is_close(c))) break;
    else depth_ += is_open(c) - is_close(c);
    if (depth_ == 0 && !is_in_string_ && (c == '"' || is_close(c))) place_ = kMember;
  }
  static constexpr std::string_view kOfUse[] = {"deviceProperties", "distributedInfo", "baseTimeNanoseconds"};
  if (std::ranges::find(kOfUse, key_) != std::end(kOfUse)) {
    std::string& kept = header_[key_];
    if (kept.size() <= kMaxHeaderBytes) kept += text_in(data, begin, at);
  }
  if (at < size_of(data)) place_ = kMember;
  return place_ == kMember;
}

// Goes one step on; returns false where that takes more bytes, or nothing is to come.
bool TraceScanner::step(Bytes data, int64_t& at, bool is_last) {
  if (place_ == kValue) return skip_member(data, at);
  if (place_ >= kEnd) {
    at = size_of(data);
    return false;
  }
  static constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (place_ == kBegin && size_of(data) - at >= 3 && text_in(data, at, at + 3) == kByteOrderMark) at += 3;
  at = skip_space(data, at, ',');
  if (at >= size_of(data)) return false;
  if (place_ == kEvents) return take_event(data, at, is_last);
  if (place_ == kMember) return begin_member(data, at);
  if (data[at] == 0xef && size_of(data) - at < 3 && !is_last) return false;
  is_bare_ = has_events_ = data[at] == '[';
  place_ = is_bare_ ? kEvents : data[at] == '{' ? kMember : kNoTrace;
  ++at;
  return true;
}

void TraceScanner::feed(Bytes block, bool is_last) {
  left_.insert(left_.end(), block.begin(), block.end());
  rows_.clear();
  int64_t at = 0;
  while (step(left_, at, is_last)) {
  }
  left_.erase(left_.begin(), left_.begin() + at);
}

}  // namespace stoker
