// Repacking: from a description over the file's bytes to panels (layout in cpu_linear.h). Exact: codes, scales and
// minima are moved, never rounded.
#include <algorithm>
#include <cstring>

#include "backend/cpu_linear.h"
#include "base/error.h"  // Error, NANO_CHECK

namespace nano {

namespace {

int find_format(const QuantLinear& w) {
  auto unsupported = [&](const std::string& what) -> Error {
    return Error(what + " is not supported yet", w.name);
  };
  if (!w.permutation.empty()) throw unsupported("a permutation of the inputs (act-order)");
  if (w.activations != ActivationScheme::none) throw unsupported("an activation scheme of the checkpoint");
  for (int i = 0; i < kNumFormats; ++i) {
    const PanelFormat& f = kFormats[i];
    if (w.source == Source::dense) {
      if (f.low == 0 && f.dense == w.dtype) return i;
      continue;
    }
    int32_t zero = w.offset == Offset::integer ? w.zero : w.code_signed ? 128 : 0;
    if (f.low != 0 && f.low + f.high == w.bits && f.unit == w.group &&
        f.two_level == (w.super_group == 256) && f.minimum == (w.offset == Offset::minimum) &&
        (f.zero_shift == 0 ? 0 : 1 << f.zero_shift) == zero && w.dtype == DType::f16)
      return i;
  }
  throw unsupported(std::string("the weight format ") + source_name(w) + " (" + std::to_string(w.bits) +
                    " bits, groups of " + std::to_string(w.group) + ")");
}

// The rows of one panel, taken apart.
struct PanelRows {
  explicit PanelRows(int64_t K)
      : codes(size_t(kLanes * K)),
        scale(size_t(kLanes * K / 16)),
        minimum(scale),
        super_scale(scale),
        super_minimum(scale),
        sub_scale(size_t(kLanes * K / 16)),
        sub_minimum(sub_scale.size()) {}

  void read(const QuantLinear& w, int64_t panel) {
    const int64_t K = w.K, G = w.num_groups(), S = w.super_group ? K / w.super_group : 0;
    for (int64_t r = 0; r < kLanes; ++r) {
      const int64_t n = panel * kLanes + r;
      if (n < w.N) {
        read_row(w, n,
                 {&codes[size_t(r * K)], &scale[size_t(r * G)], &minimum[size_t(r * G)],
                  &super_scale[size_t(r * S)], &super_minimum[size_t(r * S)], &sub_scale[size_t(r * G)],
                  &sub_minimum[size_t(r * G)]});
        continue;
      }
      std::fill_n(&codes[size_t(r * K)], K, uint8_t(0));  // a row of padding
      for (auto* part : {&scale, &minimum}) std::fill_n(&(*part)[size_t(r * G)], G, 0.0f);
      for (auto* part : {&super_scale, &super_minimum}) std::fill_n(&(*part)[size_t(r * S)], S, 0.0f);
      std::fill_n(&sub_scale[size_t(r * G)], G, int8_t(0));
      std::fill_n(&sub_minimum[size_t(r * G)], G, uint8_t(0));
    }
  }

  std::vector<uint8_t> codes;                                     // [L, K]
  std::vector<float> scale, minimum, super_scale, super_minimum;  // [L, groups], [L, super-blocks]
  std::vector<int8_t> sub_scale;
  std::vector<uint8_t> sub_minimum;
};

// L values as f16, from a row-major [L, count] at `index`.
uint8_t* put_f16(uint8_t* out, const std::vector<float>& values, int64_t count, int64_t index) {
  for (int64_t r = 0; r < kLanes; ++r) store_f32(out, DType::f16, r, values[size_t(r * count + index)]);
  return out + 2 * kLanes;
}

// One plane of `width` bits, taken from bit `from` of the codes of a tile.
uint8_t* put_plane(uint8_t* out, const uint8_t* codes, int64_t K, int width, int from, uint32_t flip) {
  if (width == 0) return out;
  const uint32_t mask = 0x01010101u * ((1u << width) - 1);
  uint32_t plane[8][kLanes] = {};
  for (int j = 0; j < 8; ++j) {
    for (int64_t r = 0; r < kLanes; ++r) {
      uint32_t quad = uint32_t(load_dword(codes + r * K + 4 * j)) ^ flip;
      plane[j % width][r] |= ((quad >> from) & mask) << (width * (j / width));
    }
  }
  std::memcpy(out, plane, size_t(width) * 4 * kLanes);
  return out + width * 4 * kLanes;
}

uint8_t* put_scales(uint8_t* out, const PanelFormat& f, const PanelRows& rows, int64_t groups, int64_t tile) {
  if (!f.two_level) {
    out = put_f16(out, rows.scale, groups, tile);
    return f.minimum ? put_f16(out, rows.minimum, groups, tile) : out;
  }
  const int64_t units = kTile / f.unit;
  const bool shared_byte = f.unit == 16 && f.minimum;
  for (int64_t u = 0; u < units; ++u) {
    for (int64_t r = 0; r < kLanes; ++r) {
      const size_t at = size_t(r * groups + tile * units + u);
      *out++ = uint8_t(rows.sub_scale[at]) | uint8_t(shared_byte ? rows.sub_minimum[at] << 4 : 0);
    }
  }
  if (f.minimum && !shared_byte)
    for (int64_t u = 0; u < units; ++u)
      for (int64_t r = 0; r < kLanes; ++r) *out++ = rows.sub_minimum[size_t(r * groups + tile * units + u)];
  return out;
}

void pack_panel(uint8_t* out, const QuantLinear& w, const PanelFormat& f, int64_t panel, PanelRows& rows) {
  rows.read(w, panel);
  const uint32_t flip = w.code_signed ? 0x80808080u : 0;
  for (int64_t g = 0; g < w.K / kTile; ++g) {
    if (f.two_level && g % kTilesPerSuper == 0) {
      const int64_t S = w.K / w.super_group, s = g / kTilesPerSuper;
      out = put_f16(out, rows.super_scale, S, s);
      if (f.minimum) out = put_f16(out, rows.super_minimum, S, s);
    }
    const uint8_t* codes = rows.codes.data() + g * kTile;
    out = put_plane(out, codes, w.K, f.low, 0, flip);
    out = put_plane(out, codes, w.K, f.high, f.low, flip);
    out = put_scales(out, f, rows, w.num_groups(), g);
  }
}

void pack_dense_panel(uint8_t* out, const QuantLinear& w, int64_t panel) {
  const int64_t size = dtype_bytes(w.dtype);
  for (int64_t r = 0; r < kLanes && panel * kLanes + r < w.N; ++r) {
    const uint8_t* row = w.data + w.file_row(panel * kLanes + r) * w.row_bytes;
    if (size == 2)
      for (int64_t k = 0; k < w.K; ++k) std::memcpy(out + (k * kLanes + r) * 2, row + 2 * k, 2);
    else
      for (int64_t k = 0; k < w.K; ++k) std::memcpy(out + (k * kLanes + r) * 4, row + 4 * k, 4);
  }
}

PackedPart pack_part(const QuantLinear& w, Team& team, Arena& arena, int64_t& bytes) {
  PackedPart part;
  part.format = find_format(w);
  const PanelFormat& f = kFormats[part.format];
  const bool dense = w.source == Source::dense;
  NANO_CHECK(dense || w.K % kTile == 0, "rows of a quantised matrix are whole groups");
  part.N = w.N;
  part.panels = (w.N + kLanes - 1) / kLanes;
  part.panel_bytes =
      Arena::rounded(dense ? w.K * kLanes * dtype_bytes(w.dtype) : tile_offset(f, w.K / kTile));
  const int64_t total = part.panels * part.panel_bytes;
  auto* data = static_cast<uint8_t*>(arena.allocate(total));
  bytes += Arena::rounded(total);
  part.panel_data = data;
  team.each(part.panels, [&](int64_t begin, int64_t end, int32_t) {
    PanelRows rows(dense ? 0 : w.K);
    for (int64_t p = begin; p < end; ++p) {
      uint8_t* out = data + p * part.panel_bytes;
      dense ? pack_dense_panel(out, w, p) : pack_panel(out, w, f, p, rows);
    }
  });
  if (!w.bias.empty()) {
    const int64_t size = part.panels * kLanes * int64_t(sizeof(float));
    auto* bias = static_cast<float*>(arena.allocate(size));
    bytes += Arena::rounded(size);
    std::copy(w.bias.begin(), w.bias.end(), bias);
    part.bias = bias;
  }
  return part;
}

}  // namespace

void pack_cpu(CpuLinear& out, std::span<const QuantLinear* const> parts, ActivationDtype activations,
              Team& team, Arena& arena) {
  NANO_CHECK(!parts.empty(), "a linear has parts");
  out.K = parts[0]->K;
  for (const QuantLinear* w : parts) {
    NANO_CHECK(w->K == out.K, "parts of one linear read the same input");
    NANO_CHECK(w->bias.empty() || int64_t(w->bias.size()) == w->N, "one bias for each output");
    out.parts.push_back(pack_part(*w, team, arena, out.bytes));
    out.N += w->N;
    const PanelFormat& f = kFormats[out.parts.back().format];
    if (f.low != 0 && activations == ActivationDtype::int8) out.has_unit[f.unit == 16] = true;
  }
}

}  // namespace nano
