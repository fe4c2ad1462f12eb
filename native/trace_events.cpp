#include "trace_events.h"

#include <algorithm>
#include <cmath>

namespace stoker {
namespace {

constexpr int64_t kIncomplete = -1, kBroken = -2;
// 9.2e15 microseconds are as many as fit in int64 nanoseconds.
constexpr int64_t kMaxUs = 9'200'000'000'000'000;

bool is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }
bool is_open(uint8_t c) { return c == '{' || c == '['; }
bool is_close(uint8_t c) { return c == '}' || c == ']'; }
int64_t size_of(Bytes data) { return static_cast<int64_t>(data.size()); }

int64_t skip_space(Bytes data, int64_t at) {
  while (at < size_of(data) && is_space(data[at])) ++at;
  return at;
}

int64_t skip_space_and_commas(Bytes data, int64_t at) {
  while (at < size_of(data) && (is_space(data[at]) || data[at] == ',')) ++at;
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
  }
  return kIncomplete;
}

std::string_view text_in(Bytes data, int64_t begin, int64_t stop) {
  return {reinterpret_cast<const char*>(data.data()) + begin, static_cast<size_t>(stop - begin)};
}

// Returns what is inside the quotes, or the text itself where there are none, without spaces around it.
std::string_view unquoted(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"') text = text.substr(1, text.size() - 2);
  while (!text.empty() && is_space(static_cast<uint8_t>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && is_space(static_cast<uint8_t>(text.back()))) text.remove_suffix(1);
  return text;
}

// Takes a sign off the front of a text; returns -1 or 1.
int take_sign(std::string_view& text, bool may_be_plus) {
  if (text.empty() || (text[0] != '-' && !(may_be_plus && text[0] == '+'))) return 1;
  const int sign = text[0] == '-' ? -1 : 1;
  text.remove_prefix(1);
  return sign;
}

int64_t parse_integer(std::string_view text) {
  text = unquoted(text);
  const int sign = take_sign(text, false);
  if (text.empty()) return kMissing;
  int64_t value = 0;
  for (const char c : text) {
    if (!is_digit(static_cast<uint8_t>(c)) || value > 400'000'000'000'000'000) return kMissing;
    value = value * 10 + (c - '0');
  }
  return sign * value;
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
  const Bytes bytes{reinterpret_cast<const uint8_t*>(value.data()), value.size()};
  if (key == "ph") row[kPhase] = value.size() == 3 ? static_cast<uint8_t>(value[1]) : 0;
  else if (key == "ts") row[kStart] = parse_ns(bytes);
  else if (key == "dur") row[kLength] = parse_ns(bytes);
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

}  // namespace

int64_t skip_value(Bytes data, int64_t at) {
  if (at >= size_of(data)) return kIncomplete;
  if (data[at] == '"') return skip_string(data, at);
  if (is_open(data[at])) return skip_nested(data, at);
  const int64_t begin = at;
  for (; at < size_of(data); ++at) {
    const uint8_t c = data[at];
    if (c == ',' || is_close(c) || is_space(c)) return at > begin ? at : kBroken;
    if (c == '"' || c == ':' || is_open(c)) return kBroken;
  }
  return kIncomplete;
}

int64_t parse_ns(Bytes bytes) {
  std::string_view text = unquoted(text_in(bytes, 0, size_of(bytes)));
  const int sign = take_sign(text, true);
  const auto digit_at = [&](size_t i) { return i < text.size() && is_digit(static_cast<uint8_t>(text[i])); };
  size_t at = 0;
  int64_t whole = 0, fraction = 0, rounding = 0;
  for (; digit_at(at); ++at) {
    if (whole >= kMaxUs) return kMissing;
    whole = whole * 10 + (text[at] - '0');
  }
  size_t num_digits = at, num_decimals = 0;
  double precise = 0.0, scale = 0.1;
  if (at < text.size() && text[at] == '.') {
    for (++at; digit_at(at); ++at, ++num_decimals, ++num_digits) {
      const int digit = text[at] - '0';
      if (num_decimals < 3) fraction = fraction * 10 + digit;
      else if (num_decimals == 3) rounding = digit >= 5;
      precise += digit * scale;
      scale *= 0.1;
    }
  }
  if (num_digits == 0) return kMissing;
  if (at == text.size()) {
    if (whole >= kMaxUs) return kMissing;
    for (; num_decimals < 3; ++num_decimals) fraction *= 10;
    return sign * (whole * 1000 + fraction + rounding);
  }
  if (text[at] != 'E' && text[at] != 'e') return kMissing;
  text.remove_prefix(at + 1);
  const int power_sign = take_sign(text, true);
  if (text.empty()) return kMissing;
  int power = 0;
  for (const char c : text) {
    if (!is_digit(static_cast<uint8_t>(c)) || power > 400) return kMissing;
    power = power * 10 + (c - '0');
  }
  const double value = (static_cast<double>(whole) + precise) * std::pow(10.0, power_sign * power) * 1000.0;
  return value < 9.2e18 ? sign * static_cast<int64_t>(std::rint(value)) : kMissing;
}

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
    at = skip_space_and_commas(data, at);
    if (at >= end) return kIncomplete;
    if (data[at] == '}' && !is_args) return at + 1;
    if (data[at] == '}') {
      is_args = false;
      ++at;
    } else {
      if (data[at] != '"') return kBroken;
      const int64_t key_begin = at + 1;
      at = skip_string(data, at);
      if (at < 0) return kIncomplete;
      const std::string_view key = text_in(data, key_begin, at - 1);
      at = skip_space(data, at);
      if (at >= end) return kIncomplete;
      if (data[at] != ':') return kBroken;
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
    if (data[at] != ',' && data[at] != '}') return kBroken;
  }
}

TraceScanner::Found TraceScanner::scan(Bytes data, int64_t at, std::span<int64_t> rows) {
  size_t num_rows = 0;
  while (true) {
    at = skip_space_and_commas(data, at);
    if (at >= size_of(data)) return {num_rows, at, kMore};
    if (data[at] == ']') return {num_rows, at + 1, kEnded};
    if ((num_rows + 1) * kNumTraceColumns > rows.size()) return {num_rows, at, kRowsFull};
    int64_t* row = rows.data() + num_rows * kNumTraceColumns;
    std::fill(row, row + kNumTraceColumns, kMissing);
    row[kCategory] = row[kName] = row[kGroup] = row[kMembers] = row[kLabel] = -1;
    row[kPhase] = 0;
    const int64_t stop = data[at] == '{' ? read_event(data, at, row) : kBroken;
    if (stop == kIncomplete) return {num_rows, at, kMore};
    if (stop == kBroken) {
      const int64_t found = find_event(data, at + 1);
      if (found < 0) return {num_rows, at, kMore};
      ++num_damaged_;
      at = found;
      continue;
    }
    at = stop;
    num_rows += row[kPhase] != 0;
  }
}

}  // namespace stoker
