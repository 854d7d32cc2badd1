// Repacking: from a description over the file's bytes to panels (layout in linear.h). Exact: codes, scales and
// minima are moved, never rounded.
#include <algorithm>
#include <cstring>

#include "backend/cpu/linear.h"  // PackedPart, CpuLinear, kFormats
#include "base/error.h"          // Error, NANO_CHECK

namespace nano::NANO_ISA {

namespace {

int find_format(const QuantLinear& w) {
  for (int i = 0; i < kNumFormats; ++i) {
    const PanelFormat& f = kFormats[i];
    if (w.source == Source::dense) {
      if (f.low == 0 && f.dense == w.dtype) return i;
      continue;
    }
    if (f.low == 0 || f.low + f.high != w.bits || (f.scales == Scales::apart) != (w.source == Source::arrays))
      continue;
    if (w.source == Source::arrays) {
      if (f.unit == (w.group >= w.K || w.group % 32 == 0 ? 32 : 16)) return i;
      continue;
    }
    const int32_t zero = w.offset == Offset::integer ? w.zero : w.code == Code::int8 ? 128 : 0;
    if (f.unit == w.group && (f.scales == Scales::two_level) == (w.super_group == 256) &&
        f.minimum == (w.offset == Offset::minimum) && (f.zero_shift == 0 ? 0 : 1 << f.zero_shift) == zero &&
        w.dtype == DType::f16)
      return i;
  }
  throw Error("the weight format " + source_name(w) + " (" + std::to_string(w.bits) + " bits, groups of " +
                  std::to_string(w.group) + ") is not supported",
              w.name);
}

// The rows of one panel, taken apart.
struct PanelRows {
  explicit PanelRows(int64_t K)
      : codes(size_t(kLanes * num_tiles(K) * kTile)),
        scale(size_t(kLanes * (K / 16 + 1))),
        minimum(scale),
        super_scale(scale),
        super_minimum(scale),
        zero(scale.size()),
        sub_scale(scale.size()),
        sub_minimum(scale.size()) {}

  void read(const QuantLinear& w, int64_t panel) {
    const int64_t K = num_tiles(w.K) * kTile, G = w.num_groups(), S = w.super_group ? w.K / w.super_group : 0;
    for (int64_t r = 0; r < kLanes; ++r) {
      const int64_t n = panel * kLanes + r;
      if (n < w.N) {
        read_row(w, n,
                 {&codes[size_t(r * K)], &scale[size_t(r * G)], &minimum[size_t(r * G)], &zero[size_t(r * G)],
                  &super_scale[size_t(r * S)], &super_minimum[size_t(r * S)], &sub_scale[size_t(r * G)],
                  &sub_minimum[size_t(r * G)]});
        continue;
      }
      std::fill_n(&codes[size_t(r * K)], K, uint8_t(0));  // a row of padding
      for (auto* part : {&scale, &minimum}) std::fill_n(&(*part)[size_t(r * G)], G, 0.0f);
      for (auto* part : {&super_scale, &super_minimum}) std::fill_n(&(*part)[size_t(r * S)], S, 0.0f);
      std::fill_n(&zero[size_t(r * G)], G, 0);
      std::fill_n(&sub_scale[size_t(r * G)], G, int8_t(0));
      std::fill_n(&sub_minimum[size_t(r * G)], G, uint8_t(0));
    }
  }

  std::vector<uint8_t> codes;                                     // [L, whole tiles of K]
  std::vector<float> scale, minimum, super_scale, super_minimum;  // [L, groups], [L, super-blocks]
  std::vector<int32_t> zero;
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
  if (f.scales == Scales::apart) return out;
  if (f.scales == Scales::in_tile) {
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

// Groups of the padded row: the last tile may have units that no group of the matrix covers. Their scales are zero.
int64_t padded_groups(const PackedPart& part, int64_t K) {
  const int64_t units = num_tiles(K) * kTile / kFormats[part.format].unit;
  return (units + part.units_per_group - 1) / part.units_per_group;
}

// All scales of a panel whose scales lie apart.
uint8_t* put_apart(uint8_t* out, const PackedPart& part, const PanelRows& rows, int64_t K, int64_t groups) {
  auto put = [&](const std::vector<float>& values, int64_t g) {
    for (int64_t r = 0; r < kLanes; ++r)
      store_f32(out, part.scale_dtype, r, g < groups ? values[size_t(r * groups + g)] : 0.0f);
    out += kLanes * dtype_bytes(part.scale_dtype);
  };
  for (int64_t g = 0; g < padded_groups(part, K); ++g) {
    put(rows.scale, g);
    if (part.offset == Offset::minimum) put(rows.minimum, g);
    for (int64_t r = 0; part.zeros && r < kLanes; ++r)
      *out++ = uint8_t(g < groups ? rows.zero[size_t(r * groups + g)] : 0);
  }
  return out;
}

void pack_panel(uint8_t* out, const QuantLinear& w, const PackedPart& part, int64_t panel, PanelRows& rows) {
  const PanelFormat& f = kFormats[part.format];
  const int64_t K = num_tiles(w.K) * kTile;
  rows.read(w, panel);
  const uint32_t flip = w.code == Code::int8 ? 0x80808080u : 0;
  if (f.scales == Scales::apart) out = put_apart(out, part, rows, w.K, w.num_groups());
  for (int64_t g = 0; g < num_tiles(w.K); ++g) {
    if (f.scales == Scales::two_level && g % kTilesPerSuper == 0) {
      const int64_t S = w.K / w.super_group, s = g / kTilesPerSuper;
      out = put_f16(out, rows.super_scale, S, s);
      if (f.minimum) out = put_f16(out, rows.super_minimum, S, s);
    }
    const uint8_t* codes = rows.codes.data() + g * kTile;
    out = put_plane(out, codes, K, f.low, 0, flip);
    out = put_plane(out, codes, K, f.high, f.low, flip);
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

// What the kernels must know of a part whose scales lie apart.
void describe_apart(PackedPart& part, const QuantLinear& w) {
  const int64_t unit = kFormats[part.format].unit;
  part.units_per_group = w.group >= w.K ? (w.K + unit - 1) / unit : w.group / unit;
  part.scale_dtype = w.dtype;
  part.offset = w.offset;
  part.zeros = w.zeros != nullptr;
  part.zero = w.code == Code::int8 ? 128 : w.offset == Offset::integer ? w.zero : 0;
  part.e4m3 = w.code == Code::e4m3;
  const int64_t values = w.offset == Offset::minimum ? 2 : 1;
  part.apart_bytes =
      padded_groups(part, w.K) * kLanes * (values * dtype_bytes(w.dtype) + (part.zeros ? 1 : 0));
}

// The biases, and what an input's zero point adds: Σ w·s·(q − z) = Σ w·s·q − s·z·Σ w.
std::vector<float> biases(const QuantLinear& w) {
  std::vector<float> out = w.bias;
  if (w.activations != ActivationScheme::int8_static || w.activation_zero == 0) return out;
  out.resize(size_t(w.N));
  std::vector<float> row(size_t(w.K));
  for (int64_t n = 0; n < w.N; ++n) {
    decode_rows(w, n, 1, row.data());
    double sum = 0;
    for (float v : row) sum += double(v);
    out[size_t(n)] -= float(double(w.activation_scale) * w.activation_zero * sum);
  }
  return out;
}

PackedPart pack_part(const QuantLinear& w, Team& team, Arena& arena, int64_t& bytes) {
  if (w.source == Source::arrays) check_arrays(w);
  PackedPart part;
  part.format = find_format(w);
  const PanelFormat& f = kFormats[part.format];
  const bool dense = w.source == Source::dense;
  if (f.scales == Scales::apart) describe_apart(part, w);
  part.N = w.N;
  part.panels = (w.N + kLanes - 1) / kLanes;
  part.panel_bytes = Arena::rounded(dense ? w.K * kLanes * dtype_bytes(w.dtype)
                                          : part.apart_bytes + tile_offset(f, num_tiles(w.K)));
  const int64_t total = part.panels * part.panel_bytes;
  auto* data = static_cast<uint8_t*>(arena.allocate(total));
  bytes += Arena::rounded(total);
  part.panel_data = data;
  team.each(part.panels, [&](int64_t begin, int64_t end, int32_t) {
    PanelRows rows(dense ? 0 : w.K);
    for (int64_t p = begin; p < end; ++p) {
      uint8_t* out = data + p * part.panel_bytes;
      dense ? pack_dense_panel(out, w, p) : pack_panel(out, w, part, p, rows);
    }
  });
  if (const std::vector<float> values = biases(w); !values.empty()) {
    const int64_t size = part.panels * kLanes * int64_t(sizeof(float));
    auto* bias = static_cast<float*>(arena.allocate(size));
    bytes += Arena::rounded(size);
    std::copy(values.begin(), values.end(), bias);
    part.bias = bias;
  }
  return part;
}

// The form that w wants, shared with earlier parts that want the same.
int find_form(std::vector<InputForm>& forms, const QuantLinear& w, ActivationDtype activations) {
  InputForm form;
  form.scheme = scheme_of(w, activations == ActivationDtype::int8);
  const bool is_static =
      form.scheme == ActivationScheme::int8_static || form.scheme == ActivationScheme::fp8_static;
  if (is_static) form.scale = w.activation_scale, form.zero = w.activation_zero;
  form.permutation = w.permutation;
  for (size_t i = 0; i < forms.size(); ++i)
    if (forms[i].same(form)) return int(i);
  NANO_CHECK(forms.size() < size_t(kMaxForms), "a linear has at most three parts");
  forms.push_back(form);
  return int(forms.size()) - 1;
}

}  // namespace

void pack_cpu(CpuLinear& out, std::span<const QuantLinear* const> parts, ActivationDtype activations,
              Team& team, Arena& arena) {
  NANO_CHECK(!parts.empty(), "a linear has parts");
  out.K = parts[0]->K;
  for (const QuantLinear* w : parts) {
    NANO_CHECK(w->K == out.K, "parts of one linear read the same input");
    NANO_CHECK(w->bias.empty() || int64_t(w->bias.size()) == w->N, "one bias for each output");
    check_scheme(*w);
    PackedPart part = pack_part(*w, team, arena, out.bytes);
    part.form = find_form(out.forms, *w, activations);
    const PanelFormat& f = kFormats[part.format];
    if (f.low != 0) out.forms[size_t(part.form)].has_unit[f.unit == 16] = true;
    out.parts.push_back(part);
    out.N += w->N;
  }
}

}  // namespace nano::NANO_ISA
