// The archive of a package, a zip file in one canonical form: what coilwork_aot/archive.py says of it holds here.
#pragma once
#include <stdint.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace coilwork_aot {

// A regular file in memory, of which this process has its own copy of what it writes to.
class MappedFile {
 public:
  // Throws Refusal: unreadable.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

struct Record {
  std::string name;
  uint64_t size = 0, header_at = 0, data_at = 0;
  uint32_t crc = 0;

  uint64_t end() const { return data_at + size; }
};

struct Archive {
  std::shared_ptr<MappedFile> file;
  std::vector<Record> records;  // in the order of the file
  std::unordered_map<std::string, size_t> numbers;

  // Null if there is none.
  const Record* find(const std::string& name) const;
  char* data(const Record& record) const { return file->data() + record.data_at; }
  std::string_view view(const Record& record) const { return {data(record), record.size}; }
};

// Maps a file and verifies its headers. Throws Refusal.
Archive read_archive(const std::string& path);

}  // namespace coilwork_aot
