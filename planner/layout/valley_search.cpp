// Is there a layout of a given height? A depth-first search along the skyline, with restarts by its caller.
//
// It asks of one section of time after another: which buffer lies next above the floor? That is the choice of a
// position in exact cover (D. Knuth, "Dancing links", 2000), and in perfect packing of rectangles; canonical_search.cpp
// asks of one buffer after another where it lies.
//
//   offset
//     |      +----+          A *section* is a stretch of time in which the same buffers are alive. A *valley* is a
//     | +--+ |    | +--+     section from which no waiting buffer reaches a lower floor. Taken there is a buffer that
//     | |  +-+    +-+  |     lies flat on it, or none: then its floor is lifted to the least offset at which any that
//     +-+---valley--+--+->   waits there could lie, and the bytes in between are lost.
//                 sections
//
// Layouts that are pushed down are searched, so a buffer must rest on 0 or on the top of another one, and of those one
// on top of the other with the same lifetime only one order. Pruned: a section in which what waits does not fit above
// the least offset of all that waits there. Where no waiting buffer crosses a point of time, the two sides are searched
// one after the other. A section that fails gets weight for the rest of the run, as the constraints of F. Boussemart et
// al., "Boosting systematic search by weighting constraints", ECAI 2004.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

enum Result : int { kNone = 0, kFound = 1, kLimit = 2 };

// Which valley is asked first, of those in which there is more than one way: the lowest; that of the fewest ways for
// its weight; the same, with bytes that may be lost in place of one more way. Valleys of one way always come before.
enum Valley : int { kLowest = 0, kFewest = 1, kTightest = 2 };

// Which buffer is tried first: by rank; the most sides at higher floors; the most sides and the most level tops.
enum Order : int { kByRank = 0, kWalls = 1, kLevel = 2 };

// A part of the height that counts as one way more, where bytes may be lost, for kTightest.
constexpr double kLostForOne = 0.05;

struct Buffer {
  int begin, end;  // sections, half-open
  std::int64_t size;
  std::int64_t smallest;  // of the buffers that share a section with it
};

struct Limits {
  std::int64_t nodes;
  Clock::time_point deadline;
  const std::atomic<int>* stop;
};

template <class Units>
class Search {
 public:
  Search(const std::vector<Buffer>& buffers, int sections, Units capacity, Valley valley, Order order,
         const Limits& limits)
      : floor_(sections, 0), top_(sections, 0), waiting_(sections, 0), beneath_(sections, -1), lowest_(sections, 0),
        flat_(sections, 0), slopes_(sections, 0), alive_(sections + 1, 0), begun_(sections + 1, 0),
        weight_(sections, 1.0), least_(buffers.size(), 0), offset_(buffers.size(), 0), seen_(buffers.size(), 0),
        capacity_(capacity), valley_(valley), order_(order), limits_(limits) {
    std::map<std::tuple<int, int, std::int64_t>, int> first;
    for (const Buffer& buffer : buffers) {
      const auto size = static_cast<Units>(buffer.size);
      const auto smallest = static_cast<Units>(std::min<std::int64_t>(buffer.smallest, kHigh));
      const auto twin = first.try_emplace({buffer.begin, buffer.end, buffer.size}, static_cast<int>(buffers_.size()));
      buffers_.push_back({buffer.begin, buffer.end, size, smallest, twin.first->second});
      for (int s = buffer.begin; s < buffer.end; ++s) waiting_[s] += size;
    }
  }

  Result run() {
    std::vector<int> all(buffers_.size());
    for (std::size_t b = 0; b < all.size(); ++b) all[b] = static_cast<int>(b);
    return parts(all, 0, static_cast<int>(floor_.size()));
  }

  const std::vector<Units>& offsets() const { return offset_; }
  std::int64_t nodes_left() const { return limits_.nodes; }

 private:
  static constexpr Units kHigh = std::numeric_limits<Units>::max() / 2;

  struct Waiting {
    int begin, end;
    Units size, smallest;
    int twin;  // the first of those of the same lifetime and size
    bool same_time(const Waiting& other) const { return begin == other.begin && end == other.end; }
  };

  struct Change {
    Units* where;
    Units before;
  };

  // Solves the independent parts of `members`, which lie in [begin, end), all or none.
  Result parts(const std::vector<int>& members, int begin, int end) {
    if (members.empty()) return kFound;
    std::fill(alive_.begin() + begin, alive_.begin() + end + 1, 0);
    std::fill(begun_.begin() + begin, begun_.begin() + end + 1, 0);
    for (int b : members) {
      ++alive_[buffers_[b].begin];
      --alive_[buffers_[b].end];
      ++begun_[buffers_[b].begin];
    }
    std::vector<int> cuts;
    int alive = 0;
    for (int s = begin; s < end; ++s) {
      alive += alive_[s];
      if (s > begin && alive == begun_[s]) cuts.push_back(s);
    }
    if (cuts.empty()) return node(members, begin, end);
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
      const Result found = node(split[k], k ? cuts[k - 1] : begin, cuts[k]);
      if (found != kFound) return found;
    }
    return kFound;
  }

  // Asks one valley after another that is left empty; recurs for each buffer that is taken.
  Result node(const std::vector<int>& members, int begin, int end) {
    const std::size_t mark = trail_.size();
    std::vector<int> candidates, rest;
    for (;;) {
      if (exhausted()) return kLimit;
      if (!measure(members, begin, end)) break;
      const int s = choose(begin, end);
      const Units at = floor_[s];
      const Units lifted = take_candidates(members, s, &candidates);
      sort(begin, end, at, &candidates);
      for (int b : candidates) {
        const std::size_t before = trail_.size();
        place(b, at);
        rest.clear();
        for (int other : members)
          if (other != b) rest.push_back(other);
        const Result found = parts(rest, begin, end);
        if (found != kNone) return found;
        undo(before);
      }
      if (lifted + waiting_[s] > capacity_) {
        weight_[s] += 1;
        break;
      }
      set(&floor_[s], lifted);
    }
    undo(mark);
    return kNone;
  }

  // The least offset of each member, and for each section how many lie flat on it, and whether one reaches a lower
  // floor. Lifts the floors on which nothing can lie. False where some section cannot take what waits there.
  // Most of the time is spent here: plain loops, so that the compiler makes vector code of them.
  bool measure(const std::vector<int>& members, int begin, int end) {
    const Units* floor = floor_.data();
    Units* __restrict lowest = lowest_.data();
    Units* __restrict flats = flat_.data();
    Units* __restrict slopes = slopes_.data();
    std::fill(lowest + begin, lowest + end, kHigh);
    for (int b : members) {
      const int first = buffers_[b].begin, last = buffers_[b].end;
      Units least = 0;
      for (int s = first; s < last; ++s) least = std::max(least, floor[s]);
      least_[b] = least;
      if (least + buffers_[b].size > capacity_) {
        int s = first;
        while (floor[s] != least) ++s;
        weight_[s] += 1;
        return false;
      }
      for (int s = first; s < last; ++s) lowest[s] = std::min(lowest[s], least);
    }
    for (int s = begin; s < end; ++s) {
      flats[s] = slopes[s] = 0;
      if (waiting_[s] == 0) continue;
      if (lowest[s] + waiting_[s] > capacity_) {
        weight_[s] += 1;
        return false;
      }
      if (lowest[s] > floor[s]) set(&floor_[s], lowest[s]);
    }
    for (int b : members) {
      const int first = buffers_[b].begin, last = buffers_[b].end;
      Units low = kHigh;
      for (int s = first; s < last; ++s) low = std::min(low, floor[s]);
      if (low < least_[b]) {
        for (int s = first; s < last; ++s) slopes[s] |= floor[s] ^ low;
      } else if (rests(buffers_[b], low)) {
        for (int s = first; s < last; ++s) ++flats[s];
      }
    }
    return true;
  }

  // There always is one: the lowest floor under what waits.
  int choose(int begin, int end) const {
    int best = -1;
    double least = 0;
    for (int s = begin; s < end; ++s) {
      if (waiting_[s] == 0 || slopes_[s] != 0) continue;
      const double height = static_cast<double>(capacity_);
      const double slack = static_cast<double>(capacity_ - floor_[s] - waiting_[s]);
      const double floor = static_cast<double>(floor_[s]) / height, ways = static_cast<double>(flat_[s]);
      double key = -1;
      if (ways + (slack > 0) > 1) {
        if (valley_ == kLowest) key = floor;
        if (valley_ == kFewest) key = (ways + (slack > 0)) / weight_[s] + 1e-6 * slack / height;
        if (valley_ == kTightest) key = (ways + slack / (kLostForOne * height)) / weight_[s];
      } else if (valley_ == kLowest) {
        key += 1e-3 * floor;
      }
      if (best < 0 || key < least) {
        least = key;
        best = s;
      }
    }
    return best;
  }

  // The buffers that may lie on the floor of s, by rank; returns its next height where none does.
  Units take_candidates(const std::vector<int>& members, int s, std::vector<int>* candidates) {
    candidates->clear();
    ++stamp_;
    Units lifted = kHigh;
    for (int b : members) {
      const Waiting& buffer = buffers_[b];
      if (s < buffer.begin || buffer.end <= s) continue;
      if (least_[b] > floor_[s]) {
        lifted = std::min(lifted, least_[b]);
        continue;
      }
      // Not here, it would rest on another buffer that is yet to lie somewhere in its time.
      lifted = std::min<Units>(lifted, floor_[s] + buffer.smallest);
      if (!rests(buffer, floor_[s]) || swapped(b, floor_[s])) continue;
      if (seen_[buffer.twin] == stamp_) continue;  // another one of the same lifetime and size is tried
      seen_[buffer.twin] = stamp_;
      candidates->push_back(b);
    }
    return lifted;
  }

  bool rests(const Waiting& buffer, Units at) const {
    if (at == 0) return true;
    for (int s = buffer.begin; s < buffer.end; ++s)
      if (top_[s] == at) return true;
    return false;
  }

  // Whether b would lie right on one that has the same lifetime and a later rank.
  bool swapped(int b, Units at) const {
    const Units under = beneath_[buffers_[b].begin];
    if (under <= b || !buffers_[under].same_time(buffers_[b])) return false;
    for (int s = buffers_[b].begin; s < buffers_[b].end; ++s)
      if (beneath_[s] != under || top_[s] != at) return false;
    return true;
  }

  void sort(int begin, int end, Units at, std::vector<int>* candidates) const {
    if (order_ == kByRank || candidates->size() < 2) return;
    const auto score = [&](int b) {
      const Waiting& buffer = buffers_[b];
      const int before = buffer.begin - 1, after = buffer.end;
      int score = before < begin || waiting_[before] == 0 || floor_[before] > at;
      score += after >= end || waiting_[after] == 0 || floor_[after] > at;
      if (order_ == kLevel) {
        score += before >= begin && floor_[before] == at + buffer.size;
        score += after < end && floor_[after] == at + buffer.size;
      }
      return score;
    };
    std::stable_sort(candidates->begin(), candidates->end(), [&](int a, int b) { return score(a) > score(b); });
  }

  void place(int b, Units at) {
    const Waiting& buffer = buffers_[b];
    offset_[b] = at;
    for (int s = buffer.begin; s < buffer.end; ++s) {
      set(&floor_[s], at + buffer.size);
      set(&top_[s], at + buffer.size);
      set(&waiting_[s], waiting_[s] - buffer.size);
      set(&beneath_[s], b);
    }
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
    if (--limits_.nodes < 0) return true;
    if ((limits_.nodes & 15) != 0) return false;
    return limits_.stop->load(std::memory_order_relaxed) != 0 || Clock::now() > limits_.deadline;
  }

  std::vector<Waiting> buffers_;
  // Of sections. `top_`: of the highest buffer, `beneath_`: that buffer; the floor is as high or, lifted, higher.
  std::vector<Units> floor_, top_, waiting_, beneath_, lowest_, flat_, slopes_;
  std::vector<int> alive_, begun_;
  std::vector<double> weight_;
  std::vector<Units> least_, offset_;  // of buffers
  std::vector<std::int64_t> seen_;      // of buffers: when one of these twins was a candidate
  std::int64_t stamp_ = 0;
  std::vector<Change> trail_;
  Units capacity_;
  Valley valley_;
  Order order_;
  Limits limits_;
};

template <class Units>
Result search(const std::vector<Buffer>& buffers, int sections, std::int64_t capacity, int valley, int buffer_order,
              const int* order, Limits limits, std::int64_t* offsets, std::int64_t* nodes_left) {
  Search<Units> search(buffers, sections, static_cast<Units>(capacity), static_cast<Valley>(valley),
                       static_cast<Order>(buffer_order), limits);
  const Result found = search.run();
  *nodes_left = std::max<std::int64_t>(search.nodes_left(), 0);
  if (found == kFound)
    for (std::size_t rank = 0; rank < buffers.size(); ++rank) offsets[order[rank]] = search.offsets()[rank];
  return found;
}

}  // namespace

// `ranges`: a pair of sections for each buffer. `smallest`: for each buffer, the least size of those that share a
// section with it. `order`: all buffers, by rank. Returns a Result; `offsets` is written when it is kFound.
extern "C" int monet_layout_valleys(int count, int sections, const int* ranges, const std::int64_t* size,
                                    const std::int64_t* smallest, const int* order, std::int64_t capacity, int valley,
                                    int buffer_order, std::int64_t nodes, double seconds, const std::atomic<int>* stop,
                                    std::int64_t* offsets, std::int64_t* nodes_left) {
  std::vector<Buffer> buffers;
  buffers.reserve(static_cast<std::size_t>(count));
  std::vector<std::int64_t> load(static_cast<std::size_t>(sections), 0);
  for (int rank = 0; rank < count; ++rank) {
    const int b = order[rank];
    buffers.push_back({ranges[2 * b], ranges[2 * b + 1], size[b], smallest[b]});
    for (int s = ranges[2 * b]; s < ranges[2 * b + 1]; ++s) load[s] += size[b];
  }
  *nodes_left = nodes;
  for (std::int64_t at_once : load)
    if (at_once > capacity) return kNone;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const Limits limits{nodes, deadline, stop};
  // No sum of two heights or of a height and a size may overflow. Half the width is twice as fast.
  if (capacity < (std::int64_t{1} << 29))
    return search<std::int32_t>(buffers, sections, capacity, valley, buffer_order, order, limits, offsets, nodes_left);
  return search<std::int64_t>(buffers, sections, capacity, valley, buffer_order, order, limits, offsets, nodes_left);
}
