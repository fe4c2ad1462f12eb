#include "parquet/thrift.h"

#include "input.h"

using stoker::parquet::ThriftReader;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto type = static_cast<uint8_t>(input.below(16));
  const std::vector<uint8_t> bytes = input.rest();
  ThriftReader whole(bytes);
  whole.skip(type);
  MUST(whole.at() <= bytes.size());
  if (whole.failed()) return 0;
  // What was passed as a whole is as long when its fields are passed one by one.
  if (type != stoker::parquet::kStruct) return 0;
  ThriftReader single(bytes);
  for (ThriftReader::Field field; single.next(field);) single.skip(field.type);
  MUST(!single.failed() && single.at() == whole.at());
  return 0;
}
