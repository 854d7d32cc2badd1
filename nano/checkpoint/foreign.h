// Small helpers for files that others wrote: names made safe for messages, and pointers taken for weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nano {

// The name between quotes: at most 80 bytes of it, control bytes shown as '?'.
std::string shown_name(std::string_view name);
std::string shape_text(const std::vector<int64_t>& shape);  // "[384, 128]"

// Error when the bytes are the text that Git LFS leaves in place of a file it did not fetch.
void check_not_lfs_pointer(const uint8_t* data, size_t size, const std::string& path);

}  // namespace nano
