// SPDX-License-Identifier: Apache-2.0

#include "tests/io/store/crash_disk.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

namespace spillway::io {
namespace {

constexpr uint64_t kSector = 512;
using Kind = DiskEvent::Kind;

// How an image chooses among the possible states of a sector, a size or a folder.
class Choice {
 public:
  explicit Choice(std::mt19937_64& random)
      : random_(random), how_(static_cast<How>(random() % 6)), until_(random()) {}

  // Chooses a state of one sector, size or folder. `events` has the number of the event that made
  // each possible state, in ascending order; the first state is the synced one. Returns the index
  // of the state that is kept.
  size_t Pick(const std::vector<size_t>& events, uint64_t file_coin) {
    const size_t last = events.size() - 1;
    switch (how_) {
      case How::kNothing: return 0;
      case How::kEverything: return last;
      case How::kByFile: return file_coin % 2 == 0 ? 0 : last;
      case How::kUpToOneMoment: return UpTo(events);
      case How::kByWrite: return ByWrite(events, file_coin);
      case How::kBySector: return random_() % events.size();
    }
    std::abort();
  }
  // Sets the range of events that contains the moment of kUpToOneMoment: `first` to `end`.
  void SetRange(size_t first, size_t end) {
    moment_ = first + until_ % std::max<size_t>(1, end - first + 1);
  }
  uint64_t Coin() { return random_(); }

 private:
  enum class How { kNothing, kEverything, kByFile, kUpToOneMoment, kByWrite, kBySector };

  size_t UpTo(const std::vector<size_t>& events) const {
    size_t state = 0;
    while (state + 1 < events.size() && events[state + 1] < moment_) ++state;
    return state;
  }
  // Each event is kept or lost as a whole. A sector has the state of the last kept event that wrote
  // it.
  static size_t ByWrite(const std::vector<size_t>& events, uint64_t coin) {
    for (size_t state = events.size() - 1; state > 0; --state) {
      if (((events[state] * 0x9e3779b97f4a7c15u) ^ coin) >> 17 & 1) return state;
    }
    return 0;
  }

  std::mt19937_64& random_;
  How how_;
  uint64_t until_;
  size_t moment_ = 0;
};

// A file's current content, and the states that its sectors and its size had since the last sync.
class File {
 public:
  void Write(size_t event, uint64_t offset, const std::string& data) {
    const uint64_t end = offset + data.size();
    for (uint64_t sector = offset / kSector; sector * kSector < end; ++sector) Keep(sector);
    if (now_.size() < end) Resize(event, end);
    now_.replace(offset, data.size(), data);
    for (uint64_t sector = offset / kSector; sector * kSector < end; ++sector) Add(sector, event);
  }
  void Resize(size_t event, uint64_t size) {
    if (sizes_.empty()) sizes_.push_back({0, now_.size()});
    for (uint64_t at = size / kSector * kSector; at < now_.size(); at += kSector)
      Keep(at / kSector);
    const uint64_t old = now_.size();
    now_.resize(size, '\0');
    for (uint64_t at = size / kSector * kSector; at < old; at += kSector) Add(at / kSector, event);
    sizes_.push_back({event, size});
  }
  void Sync() {
    sectors_.clear();
    sizes_.clear();
  }
  std::string Find(Choice& choice) const {
    const uint64_t coin = choice.Coin();
    std::string found = now_;
    for (const auto& [sector, states] : sectors_) {
      std::vector<size_t> events;
      for (const auto& state : states) events.push_back(state.first);
      const std::string& content = states[choice.Pick(events, coin)].second;
      if (found.size() < (sector + 1) * kSector) found.resize((sector + 1) * kSector, '\0');
      found.replace(sector * kSector, kSector, content);
    }
    uint64_t size = now_.size();
    if (!sizes_.empty()) {
      std::vector<size_t> events;
      for (const auto& state : sizes_) events.push_back(state.first);
      size = sizes_[choice.Pick(events, coin)].second;
    }
    found.resize(size, '\0');
    return found;
  }

 private:
  std::string Sector(uint64_t sector) const {
    std::string content =
        sector * kSector < now_.size() ? now_.substr(sector * kSector, kSector) : std::string();
    content.resize(kSector, '\0');
    return content;
  }
  void Keep(uint64_t sector) {
    auto& states = sectors_[sector];
    if (states.empty()) states.push_back({0, Sector(sector)});
  }
  void Add(uint64_t sector, size_t event) { sectors_[sector].push_back({event, Sector(sector)}); }

  std::string now_;
  std::map<uint64_t, std::vector<std::pair<size_t, std::string>>> sectors_;
  std::vector<std::pair<size_t, uint64_t>> sizes_;
};

std::string ParentOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// The changes of names in one folder, and how many of them are durable.
struct Folder {
  std::vector<size_t> events;
  size_t num_durable = 0;
};

// The files and folders by name, after some changes of names.
class Names {
 public:
  void Apply(const DiskEvent& event) {
    switch (event.kind) {
      case Kind::kMake: names_[event.path] = event.file; break;
      case Kind::kMakeFolder: names_[event.path] = kFolder; break;
      case Kind::kUnlink: names_.erase(event.path); break;
      case Kind::kRename:
        names_[event.to] = names_.at(event.path);
        names_.erase(event.path);
        break;
      default: break;
    }
  }
  // Returns the names whose parent folders exist.
  std::map<std::string, int> Reachable() const {
    std::map<std::string, int> reachable;
    for (const auto& [path, file] : names_) {
      const std::string parent = ParentOf(path);
      if (parent.empty() || reachable.contains(parent)) reachable[path] = file;
    }
    return reachable;
  }
  static constexpr int kFolder = -1;

 private:
  std::map<std::string, int> names_;  // a folder sorts before its content
};

}  // namespace

DiskImage CutPower(const std::vector<DiskEvent>& events, size_t num_events,
                   std::mt19937_64& random) {
  std::map<int, File> files;
  std::map<std::string, Folder> folders;
  for (size_t i = 0; i < num_events; ++i) {
    const DiskEvent& event = events[i];
    switch (event.kind) {
      case Kind::kWrite: files[event.file].Write(i, event.offset, event.data); break;
      case Kind::kResize: files[event.file].Resize(i, event.offset); break;
      case Kind::kSync: files[event.file].Sync(); break;
      case Kind::kSyncFolder:
        folders[event.path].num_durable = folders[event.path].events.size();
        break;
      default: folders[ParentOf(event.path)].events.push_back(i); break;
    }
  }
  Choice choice(random);
  choice.SetRange(num_events - std::min<size_t>(num_events, 60), num_events);
  std::vector<size_t> kept;
  for (const auto& [path, folder] : folders) {
    std::vector<size_t> states = {0};
    for (size_t i = folder.num_durable; i < folder.events.size(); ++i)
      states.push_back(folder.events[i]);
    const size_t num_kept = folder.num_durable + choice.Pick(states, choice.Coin());
    kept.insert(kept.end(), folder.events.begin(),
                folder.events.begin() + static_cast<std::ptrdiff_t>(num_kept));
  }
  std::sort(kept.begin(), kept.end());
  Names names;
  for (const size_t event : kept) names.Apply(events[event]);
  DiskImage image;
  for (const auto& [path, file] : names.Reachable()) {
    image[path] = file == Names::kFolder ? std::nullopt : std::optional(files[file].Find(choice));
  }
  return image;
}

void WriteImage(const DiskImage& image, const std::string& root) {
  for (const auto& entry : std::filesystem::directory_iterator(root))
    std::filesystem::remove_all(entry.path());
  for (const auto& [path, content] : image) {
    const std::string full = root + "/" + path;
    if (content) {
      std::ofstream(full, std::ios::binary) << *content;
    } else {
      std::filesystem::create_directory(full);
    }
  }
}

}  // namespace spillway::io
