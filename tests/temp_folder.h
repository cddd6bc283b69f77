// SPDX-License-Identifier: Apache-2.0
//
// A temporary folder for one test, removed with everything in it, and helpers for files.

#ifndef SPILLWAY_TESTS_TEMP_FOLDER_H_
#define SPILLWAY_TESTS_TEMP_FOLDER_H_

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace spillway::test {

// Returns a folder in memory if there is such a file system. A killed process leaves the same files
// there as on a disk, and hundreds of syncs cost nothing. A program that runs tests which may be
// killed sets SPILLWAY_TEST_FAST_TMPDIR to a folder of its own.
inline std::filesystem::path FastPlace() {
  if (const char* const place = std::getenv("SPILLWAY_TEST_FAST_TMPDIR")) return place;
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
}

class TempFolder {
 public:
  explicit TempFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : path_((parent / "spillway-test-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// Returns the names of the files in the folder, sorted.
inline std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Writes the tokens as a NumPy file of uint16 or uint32.
template <typename T>
void WriteNpy(const std::string& path, const std::vector<T>& tokens) {
  std::string dict = "{'descr': '<u" + std::to_string(sizeof(T)) +
                     "', 'fortran_order': False, 'shape': (" + std::to_string(tokens.size()) +
                     ",), }";
  dict.resize((dict.size() + 10) / 64 * 64 + 53, ' ');
  dict += '\n';
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(dict.size() & 0xff);
  text += static_cast<char>(dict.size() >> 8);
  text += dict;
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
  WriteFile(path, text);
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_TEMP_FOLDER_H_
