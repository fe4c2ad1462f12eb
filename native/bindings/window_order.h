// The order of a window as Python holds it: with the arrays that it points into.
#pragma once

#include "../window_order.h"
#include "arrays.h"

namespace stoker {

struct BoundWindowOrder : WindowOrder {
  Array<const int64_t> slot_start_array, shift_array;
  Array<const int32_t> guide_array;
};

}  // namespace stoker
