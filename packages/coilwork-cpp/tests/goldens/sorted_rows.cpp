// sorted_rows for x86-64-avx512
// Ranges: x0 < n0, r0 < 50000.

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

extern "C" void* malloc(unsigned long size) noexcept;
extern "C" void free(void* memory) noexcept;
// Working memory of a thread, freed at the end of its scope.
template <class T>
struct Workspace {
  T* memory;
  explicit Workspace(i64 elements) : memory(static_cast<T*>(malloc(sizeof(T) * u64(elements)))) {
    if (!memory) __builtin_trap();
  }
  ~Workspace() { free(memory); }
};

static inline i64 max_i64(i64 a, i64 b) { return a > b ? a : b; }

static inline i64 min_i64(i64 a, i64 b) { return a < b ? a : b; }

// By `bytes` bytes from bit `lowest` on; returns the one of `records` and `spare` that holds them in order in the end.
template <int bytes, class Record>
static Record* sort_by_bytes(Record* records, Record* spare, i64 count, int lowest) {
  i64 places[bytes][256] = {};
  for (i64 i = 0; i < count; ++i) {
    const u64 key = u64(records[i] >> lowest);
    for (int b = 0; b < bytes; ++b) ++places[b][(key >> (8 * b)) & 255];
  }
  for (int b = 0; b < bytes; ++b) {
    const int shift = lowest + 8 * b;
    i64* const place = places[b];
    if (place[u64(records[0] >> shift) & 255] == count) continue;
    i64 before = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const i64 here = place[byte];
      place[byte] = before;
      before += here;
    }
    for (i64 i = 0; i < count; ++i) {
      const Record record = records[i];
      spare[place[u64(record >> shift) & 255]++] = record;
    }
    Record* const sorted = spare;
    spare = records;
    records = sorted;
  }
  return records;
}

using u128 = unsigned __int128;

// At most 128.
static inline void sort_by_counting(u64* records, u64* sorted, i64 count) {
  u64 places[128] = {};
  for (i64 k = 0; k < count; ++k) {
    const u64 record = records[k];
#pragma omp simd
    for (i64 i = 0; i < count; ++i) places[i] += record < records[i];
  }
  for (i64 i = 0; i < count; ++i) sorted[places[i]] = records[i];
}
// Of at most 80, by their upper halves: records that are equal in them lie in order.
static inline void sort_by_counting(u128* records, u128* sorted, i64 count) {
  u64 keys[80], places[80] = {};
  for (i64 i = 0; i < count; ++i) keys[i] = u64(records[i] >> 64);
  for (i64 k = 0; k < count; ++k) {
    const u64 key = keys[k];
#pragma omp simd
    for (i64 i = 0; i < count; ++i) places[i] += (key < keys[i]) | ((key == keys[i]) & (k < i));
  }
  for (i64 i = 0; i < count; ++i) sorted[places[i]] = records[i];
}

// Puts records in order that nearly are; false if so many are not that it gives up.
template <class Record>
static bool insert_few(Record* records, i64 count) {
  i64 moves = 0;
  for (i64 i = 1; i < count && moves <= count; ++i) {
    const Record record = records[i];
    i64 at = i;
    for (; at > 0 && record < records[at - 1]; --at) records[at] = records[at - 1];
    records[at] = record;
    moves += i - at;
  }
  return moves <= count;
}

// The upper four of the bytes that differ leave little to do, as a rule.
static u128* sort_by_wide_keys(u128* records, u128* spare, i64 count) {
  u64 differing = 0;
  for (i64 i = 1; i < count; ++i) differing |= u64((records[i] ^ records[0]) >> 64);
  int lower = 4;
  while (lower > 0 && !(differing >> (8 * lower + 24))) --lower;
  u128* const upper = sort_by_bytes<4>(records, spare, count, 64 + 8 * lower);
  if (!(differing & ((u64(1) << (8 * lower)) - 1)) || insert_few(upper, count)) return upper;
  u128* const half = sort_by_bytes<4>(upper, upper == records ? spare : records, count, 64);
  return sort_by_bytes<4>(half, half == records ? spare : records, count, 96);
}

// In order, in `records` or in `spare`. Those of equal keys lie in the order of their positions before, too.
template <class Key>
static inline u64* sort_records(u64* records, u64* spare, i64 count) {
  if (count > 128) return sort_by_bytes<sizeof(Key)>(records, spare, count, 64 - 8 * sizeof(Key));
  sort_by_counting(records, spare, count);
  return spare;
}
template <class Key>
static inline u128* sort_records(u128* records, u128* spare, i64 count) {
  if (count > 80 && sizeof(Key) == 8) return sort_by_wide_keys(records, spare, count);
  if (count > 80) return sort_by_bytes<4>(records, spare, count, 96);
  sort_by_counting(records, spare, count);
  return spare;
}

// The first `wanted` in order, in `records`. Those found so far are held at the front, and behind them others that come before the last
// of these; when there are too many, all that are held are sorted. `spare` has room for 32 more than are too many.
template <class Key, class Record>
static Record* first_records(Record* records, Record* spare, i64 count, i64 wanted) {
  const i64 most = min_i64(count, max_i64(2 * wanted, 32));
  i64 held = most;
  Record last = 0;
  const auto sort = [&] {
    const Record* const sorted = sort_records<Key>(records, spare, held);
    if (sorted != records)
      for (i64 i = 0; i < wanted; ++i) records[i] = sorted[i];
    held = wanted;
    last = records[wanted - 1];
  };
  sort();
  for (i64 at = most; at < count; at += 32) {
    const i64 next = min_i64(count - at, 32);
    int found = next < 32;
    if (!found) {
#pragma omp simd reduction(| : found)
      for (i64 i = 0; i < 32; ++i) found |= records[at + i] < last;
    }
    if (!found) continue;
    for (i64 i = 0; i < next; ++i) {
      const Record record = records[at + i];
      records[held] = record;
      held += record < last;
    }
    if (held > most) sort();
  }
  if (held > wanted) sort();
  return records;
}

template <class Key, bool descending, class Record>
static inline Key record_key(Record record) {
  const Key key = Key(record >> (8 * (sizeof(Record) - sizeof(Key))));
  return descending ? Key(~key) : key;
}

// Of the value that `record` was made of.
template <class Key, bool descending, class Record>
static inline Key float_bits(Record record) {
  const Key sign = Key(Key(1) << (8 * sizeof(Key) - 1));
  const Key key = record_key<Key, descending>(record);
  const Key bits = Key(key < sign ? (sign - key) | sign : key - sign);
  return Key(u64(record) & 1 ? sign : bits);
}

template <class Record, class Key>
static inline Record make_record(Key key, i64 position, bool negative_zero) {
  return (Record(key) << (8 * (sizeof(Record) - sizeof(Key)))) | (Record(position) << 1) | Record(negative_zero);
}

// Zeros have one key, and so have all NaN, the greatest.
template <class Record, class Key, bool descending>
static inline Record float_record(Key bits, Key infinity, i64 position) {
  const Key sign = Key(Key(1) << (8 * sizeof(Key) - 1));
  const Key magnitude = Key(bits & Key(~sign));
  const Key number = Key(bits & sign ? sign - magnitude : sign + magnitude);
  const Key key = magnitude > infinity ? Key(~Key(0)) : number;
  return make_record<Record>(descending ? Key(~key) : key, position, bits == sign);
}

template <class Key, class Record>
static inline i64 record_position(Record record) {
  return i64(Record(record << (8 * sizeof(Key))) >> (8 * sizeof(Key) + 1));
}

extern "C" int torch_parallel_for(i64 begin, i64 end, i64 grain, void (*body)(i64, i64, void*), void* context);

// Calls body on all units, on torch's threads if there are more than `grain`.
static inline void run(void (*body)(i64, i64, void*), i64 units, i64 grain, void* context) {
  if (units <= grain) {
    body(0, units, context);
  } else {
    torch_parallel_for(0, units, grain, body, context);
  }
}

struct Arguments {
  const float* in0;
  float* out0;
  i64* out1;
  i64 n0;
};

// Writes out0, out1. A unit of work: x0.
static void nest_0(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const float* __restrict const in0 = a.in0;
  float* __restrict const out0 = a.out0;
  i64* __restrict const out1 = a.out1;
  const i64 n0 = a.n0;
  const Workspace<u64> records_0_memory = Workspace<u64>(50000);
  u64* const records_0 = records_0_memory.memory;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 x0 = unit;
    alignas(64) u64 records_0_spare[112];
    #pragma omp simd
    for (i64 r0 = 0; r0 < 50000; ++r0) {
      const float in0_value_0 = in0[r0 + x0 * 50000];
      const float mul_0 = in0_value_0 * 2.0f;
      records_0[r0] = float_record<u64, u32, true>(__builtin_bit_cast(u32, mul_0), 0x7f800000u, r0);
    }
    const u64* const records_0_ordered = first_records<u32>(records_0, records_0_spare, 50000, 40);
    #pragma omp simd
    for (i64 r0 = 0; r0 < 40; ++r0) {
      out0[r0 + x0 * 40] = __builtin_bit_cast(float, float_bits<u32, true>(records_0_ordered[r0]));
      out1[r0 + x0 * 40] = record_position<u32>(records_0_ordered[r0]);
    }
  }
}

extern "C" void sorted_rows(const float* in0, float* out0, i64* out1, i64 n0) {
  Arguments arguments = {in0, out0, out1, n0};
  run(nest_0, n0, 1, &arguments);
}
