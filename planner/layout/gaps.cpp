// First fit and best fit: buffers one after the other, each into a gap of bytes between those that are placed and share
// a tick with it. What heuristics.py does with numpy, twenty times as fast for a thousand buffers.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

enum Result : int { kLimit = 0, kPlaced = 1 };

// Looks at the clock: once in so many buffers.
constexpr int kBuffersAtOnce = 64;

struct Piece {
  std::int64_t begin, end, offset, top;
};

}  // namespace

// ``order``: all buffers, those of given offsets first. Buffer b is alive in the pieces first[b] to first[b + 1].
// ``limit``: no buffer may end above it. Returns kLimit where one does, or where ``seconds`` have passed.
extern "C" int monet_layout_gaps(int count, const std::int64_t* order, const std::int64_t* first,
                                 const std::int64_t* begin, const std::int64_t* end, const std::int64_t* size,
                                 const std::int64_t* fixed_at, int smallest, std::int64_t limit, double seconds,
                                 std::int64_t* offsets) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::vector<Piece> placed;  // in the order of their offsets, of equals the last placed first
  placed.reserve(static_cast<std::size_t>(first[count]));
  for (int n = 0; n < count; ++n) {
    if (n % kBuffersAtOnce == 0 && Clock::now() > deadline) return kLimit;
    const std::int64_t buffer = order[n], need = size[buffer];
    const std::int64_t from = first[buffer], to = first[buffer + 1];
    std::int64_t offset = fixed_at[buffer];
    if (offset < 0) {
      std::int64_t top = 0, tightest = std::numeric_limits<std::int64_t>::max();
      for (const Piece& other : placed) {
        bool shares = false;
        for (std::int64_t k = from; k < to && !shares; ++k) shares = other.begin < end[k] && other.end > begin[k];
        if (!shares) continue;
        const std::int64_t gap = other.offset - top;
        if (gap >= need && gap < tightest) {
          offset = top;
          tightest = gap;
          if (!smallest) break;
        }
        top = std::max(top, other.top);
      }
      if (offset < 0) offset = top;
    }
    if (offset + need > limit) return kLimit;
    offsets[buffer] = offset;
    const auto at = std::lower_bound(placed.begin(), placed.end(), offset,
                                     [](const Piece& piece, std::int64_t low) { return piece.offset < low; });
    std::vector<Piece> own;
    for (std::int64_t k = from; k < to; ++k) own.push_back({begin[k], end[k], offset, offset + need});
    placed.insert(at, own.begin(), own.end());
  }
  return kPlaced;
}
