// Is there a layout of a given height? A canonical depth-first search with restarts by its caller.
//
// After M. Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine learning",
// ASPLOS 2023. A layout is canonical when its buffers, taken in the order of (offset, rank), each rest on the floor
// or on a buffer taken before. Every layout can be pushed down to a canonical one, so only these are searched:
//
//   offset
//     |   +---+ . . . . cap        Taken so far: the shape below the floors. A node takes one buffer more, at its
//     |   |   |  +--+              *least* offset, the highest floor under it, and never below the one taken last.
//     |   +---+--+  +--            A *section* is a stretch of time in which the same buffers are alive.
//     +----------------> sections
//
// Pruned: a section whose floor (or the last offset, if higher) and unplaced bytes exceed the capacity; a buffer at
// or above the top of another that could lie beneath it; after a failure, the siblings of a buffer under which
// nothing waits. Where no waiting buffer crosses a point of time, the two sides are searched one after the other.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace {

using Units = std::int64_t;
using Clock = std::chrono::steady_clock;

enum Result : int { kNone = 0, kFound = 1, kLimit = 2 };

struct Range {
  int begin, end;  // sections, half-open
};

struct Buffer {
  std::vector<Range> alive;
  int begin, end;  // of all that is alive
  Units size, fixed_at;
  int rank;
};

struct Change {
  Units* where;
  Units before;
};

class Search {
 public:
  Search(std::vector<Buffer> buffers, int sections, Units capacity, std::int64_t nodes, double seconds,
         const std::atomic<int>* stop)
      : buffers_(std::move(buffers)), floor_(sections, 0), waiting_(sections, 0), crossing_(sections + 1, 0),
        least_(buffers_.size(), 0), offset_(buffers_.size(), -1), capacity_(capacity), nodes_left_(nodes),
        deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))),
        stop_(stop) {
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      const Buffer& buffer = buffers_[b];
      for (const Range& range : buffer.alive)
        for (int s = range.begin; s < range.end; ++s) waiting_[s] += buffer.size;
      for (int s = buffer.begin + 1; s < buffer.end; ++s) ++crossing_[s];
      least_[b] = std::max<Units>(buffer.fixed_at, 0);
    }
  }

  Result run() {
    for (std::size_t s = 0; s < floor_.size(); ++s)
      if (waiting_[s] > capacity_) return kNone;
    std::vector<int> all(buffers_.size());
    for (std::size_t b = 0; b < all.size(); ++b) all[b] = static_cast<int>(b);
    return parts(all, 0, static_cast<int>(floor_.size()), 0, -1);
  }

  const std::vector<Units>& offsets() const { return offset_; }

 private:
  // Solves the independent parts of `members`, which lie in [begin, end), all or none.
  Result parts(const std::vector<int>& members, int begin, int end, Units last, int last_rank) {
    if (members.empty()) return kFound;
    std::vector<int> cuts;
    for (int s = begin + 1; s < end; ++s)
      if (crossing_[s] == 0) cuts.push_back(s);
    if (cuts.empty()) return node(members, begin, end, last, last_rank);
    cuts.push_back(end);
    std::vector<std::vector<int>> split(cuts.size());
    for (int b : members)
      split[std::upper_bound(cuts.begin(), cuts.end(), buffers_[b].begin) - cuts.begin()].push_back(b);
    // The fullest first: what cannot be done should fail before work is spent on the rest.
    std::vector<std::size_t> order;
    for (std::size_t k = 0; k < split.size(); ++k)
      if (!split[k].empty()) order.push_back(k);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return split[a].size() > split[b].size(); });
    for (std::size_t k : order) {
      const Result found = node(split[k], k ? cuts[k - 1] : begin, cuts[k], last, last_rank);
      if (found != kFound) return found;
    }
    return kFound;
  }

  Result node(const std::vector<int>& members, int begin, int end, Units last, int last_rank) {
    if (exhausted()) return kLimit;
    Units lowest_top = INT64_MAX, most_waiting = 0;
    for (int b : members) lowest_top = std::min(lowest_top, least_[b] + buffers_[b].size);
    for (int s = begin; s < end; ++s) most_waiting = std::max(most_waiting, waiting_[s]);
    std::vector<int> candidates;
    for (int b : members) {
      const bool after = least_[b] > last || (least_[b] == last && buffers_[b].rank > last_rank);
      // All that waits will lie at or above what is taken next.
      if (after && least_[b] < lowest_top && least_[b] + most_waiting <= capacity_) candidates.push_back(b);
      if (!after && buffers_[b].fixed_at >= 0) return kNone;  // it can no longer be raised to be taken later
    }
    std::sort(candidates.begin(), candidates.end(), [&](int a, int b) {
      return least_[a] != least_[b] ? least_[a] < least_[b] : buffers_[a].rank < buffers_[b].rank;
    });
    std::vector<int> rest;
    rest.reserve(members.size());
    for (int b : candidates) {
      const std::size_t mark = trail_.size();
      const Units at = least_[b], rank = buffers_[b].rank;
      rest.clear();
      bool beneath = false;
      Range changed{buffers_[b].begin, buffers_[b].end};
      if (place(b, members, rest, &beneath, &changed) && fits(rest, changed, at)) {
        const Result found = parts(rest, begin, end, at, static_cast<int>(rank));
        if (found != kNone) return found;
      }
      undo(mark);
      if (!beneath) return kNone;
    }
    return kNone;
  }

  // False when a buffer whose offset is given would have to move. `rest`: members without b; `beneath`: one of them is
  // over b; `changed`: grows to the sections in which something waits higher than before.
  bool place(int b, const std::vector<int>& members, std::vector<int>& rest, bool* beneath, Range* changed) {
    const Buffer& buffer = buffers_[b];
    const Units top = least_[b] + buffer.size;
    set(&offset_[b], least_[b]);
    for (const Range& range : buffer.alive)
      for (int s = range.begin; s < range.end; ++s) {
        set(&floor_[s], top);
        set(&waiting_[s], waiting_[s] - buffer.size);
      }
    for (int s = buffer.begin + 1; s < buffer.end; ++s) set(&crossing_[s], crossing_[s] - 1);
    bool possible = top <= capacity_;
    for (int other : members) {
      if (other == b) continue;
      rest.push_back(other);
      if (!overlap(buffer, buffers_[other])) continue;
      *beneath = true;
      if (least_[other] < top) {
        possible = possible && buffers_[other].fixed_at < 0;
        set(&least_[other], top);
        changed->begin = std::min(changed->begin, buffers_[other].begin);
        changed->end = std::max(changed->end, buffers_[other].end);
      }
    }
    return possible;
  }

  // Whether what waits in each section fits above the lowest of it. Outside `changed` it did before, and node() has
  // seen to what waits below `last`.
  bool fits(const std::vector<int>& rest, const Range& changed, Units last) {
    lowest_.assign(static_cast<std::size_t>(changed.end - changed.begin), INT64_MAX);
    for (int b : rest) {
      const Buffer& buffer = buffers_[b];
      if (buffer.begin >= changed.end || changed.begin >= buffer.end) continue;
      const Units at = std::max(least_[b], last);
      if (at + buffer.size > capacity_) return false;
      for (const Range& range : buffer.alive)
        for (int s = std::max(range.begin, changed.begin); s < std::min(range.end, changed.end); ++s)
          lowest_[s - changed.begin] = std::min(lowest_[s - changed.begin], at);
    }
    for (int s = changed.begin; s < changed.end; ++s)
      if (waiting_[s] > 0 && lowest_[s - changed.begin] + waiting_[s] > capacity_) return false;
    return true;
  }

  static bool overlap(const Buffer& a, const Buffer& b) {
    if (a.begin >= b.end || b.begin >= a.end) return false;
    for (const Range& x : a.alive)
      for (const Range& y : b.alive)
        if (x.begin < y.end && y.begin < x.end) return true;
    return false;
  }

  void set(Units* where, Units value) {
    trail_.push_back({where, *where});
    *where = value;
  }

  void undo(std::size_t mark) {
    while (trail_.size() > mark) {
      *trail_.back().where = trail_.back().before;
      trail_.pop_back();
    }
  }

  bool exhausted() {
    if (--nodes_left_ < 0) return true;
    if ((nodes_left_ & 15) != 0) return false;
    return stop_->load(std::memory_order_relaxed) != 0 || Clock::now() > deadline_;
  }

  std::vector<Buffer> buffers_;
  std::vector<Units> floor_, waiting_, crossing_, least_, offset_, lowest_;
  std::vector<Change> trail_;
  Units capacity_;
  std::int64_t nodes_left_;
  Clock::time_point deadline_;
  const std::atomic<int>* stop_;
};

}  // namespace

// `ranges`: for buffer b, those from first_range[b] to first_range[b + 1], as pairs of sections. `fixed_at`: an offset,
// or -1. `order`: all buffers, by rank. Returns a Result; `offsets` is written when it is kFound.
extern "C" int monet_layout_search(int count, int sections, const int* first_range, const int* ranges,
                                   const Units* size, const Units* fixed_at, const int* order, Units capacity,
                                   std::int64_t nodes, double seconds, const std::atomic<int>* stop, Units* offsets) {
  // In the order of ranks, so that ties anywhere are broken by rank.
  std::vector<Buffer> buffers;
  buffers.reserve(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    const int b = order[rank];
    Buffer buffer{{}, INT32_MAX, 0, size[b], fixed_at[b], rank};
    for (int r = first_range[b]; r < first_range[b + 1]; ++r) {
      const Range range{ranges[2 * r], ranges[2 * r + 1]};
      buffer.alive.push_back(range);
      buffer.begin = std::min(buffer.begin, range.begin);
      buffer.end = std::max(buffer.end, range.end);
    }
    buffers.push_back(std::move(buffer));
  }
  Search search(std::move(buffers), sections, capacity, nodes, seconds, stop);
  const Result found = search.run();
  if (found == kFound)
    for (int rank = 0; rank < count; ++rank) offsets[order[rank]] = search.offsets()[static_cast<std::size_t>(rank)];
  return found;
}
