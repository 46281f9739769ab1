// Threads that serve steps and free each other's blocks, for ThreadSanitizer. Without torch: guided.h needs none.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "guided.h"

namespace {

struct Block {
  char* at;
  Range* range;  // nullptr: from malloc
  int64_t bytes;
  uint64_t step;
  int64_t entry;
};
std::mutex pool_mutex;
std::vector<Block> pool;
std::atomic<int> wrong{0};

void free_block(const Block& block) {
  for (int64_t k = 1; k < block.bytes; ++k)
    if (block.at[k] != block.at[0]) ++wrong;
  if (block.range == nullptr) {
    note_freed(block.step, block.entry);
    std::free(block.at);
    return;
  }
  vacate(*block.range, block.at);
  if (block.range->blocks.fetch_sub(1) == 1) unmap_orphan(*block.range);
}

void work(unsigned seed) {
  std::mt19937 random(seed);
  Guide& own = *make_guide(0);
  bind_guide(&own);
  GuidedPlan plan;
  for (int k = 0; k < 40; ++k) {
    plan.sizes.push_back(64 + 64 * (k % 5));
    plan.offsets.push_back(k % 7 == 6 ? -1 : 320 * (k % 20));
  }
  for (int step = 0; step < 200; ++step) {
    if (make_guided_room(own, 320 * 20 + 64 * (step / 20)) != 0) std::abort();
    begin_step(own, &plan);
    for (int k = 0; k < 40; ++k) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % 384);
      Block block{nullptr, nullptr, bytes, own.step, -1};
      block.at = serve(own, bytes, &block.entry);
      if (block.at != nullptr)
        block.range = own.home.range;
      else
        block.at = static_cast<char*>(std::malloc(static_cast<size_t>(bytes)));
      std::memset(block.at, static_cast<int>(random() % 256), static_cast<size_t>(bytes));
      std::vector<Block> taken;
      {
        std::lock_guard<std::mutex> lock(pool_mutex);
        pool.push_back(block);
        for (unsigned n = random() % 3; n > 0 && !pool.empty(); --n) {
          std::swap(pool[random() % pool.size()], pool.back());
          taken.push_back(pool.back());
          pool.pop_back();
        }
      }
      for (const Block& one : taken) free_block(one);
    }
    end_step(own);
  }
  destroy_guide(&own);
}

}  // namespace

int main() {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  for (const Block& block : pool) free_block(block);
  std::printf("%d wrong, %lld bytes live\n", wrong.load(), static_cast<long long>(live_bytes.load()));
  return wrong.load() == 0 && live_bytes.load() == 0 ? 0 : 1;
}
