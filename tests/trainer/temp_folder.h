// SPDX-License-Identifier: Apache-2.0
//
// A folder of a test's own, removed with everything in it.

#ifndef SPILLWAY_TESTS_TRAINER_TEMP_FOLDER_H_
#define SPILLWAY_TESTS_TRAINER_TEMP_FOLDER_H_

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace spillway::test {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "spillway-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
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

inline void WriteFile(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The tokens as a NumPy file of uint16 or uint32.
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

#endif  // SPILLWAY_TESTS_TRAINER_TEMP_FOLDER_H_
