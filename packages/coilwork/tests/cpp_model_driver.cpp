// Runs a package for test_cpp_models.py: without Python, and told what to do word by word. Prints a line for each thing that it does.
//
//   driver TORCH WORDS...
//     open NAME PATH            as a model called NAME
//     share NAME OTHER PATH     with the tensors of OTHER
//     input NAME FILE SIZES     float32 from a file, e.g. 3,16; "t3,16": of a transposed matrix
//     call NAME ENTRY IN... ;   prints each result: its kind, sizes and bytes
//     threads NAME ENTRY IN... ; eight threads, 50 calls each: prints how many results differ from the first
//     repeat COUNT NAME ENTRY IN... ;
//     weights NAME FILE COPY    from safetensors; COPY is copy or assign
//     state NAME                prints names, kinds and bytes
//     takes NAME ENTRY          prints the inputs
//     close NAME
//     python                    prints whether a library of Python is loaded
#include <coilwork/model.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

using coilwork::Model;
using coilwork::Tensor;
using coilwork::Value;

static std::map<std::string, std::unique_ptr<Model>> models;
static std::map<std::string, Value> inputs;

static std::string describe(const Tensor& tensor) {
  std::ostringstream out;
  const CoilworkMemory memory = tensor.memory();
  out << "tensor " << memory.dtype;
  for (int64_t size : tensor.sizes()) out << " " << size;
  out << " :";
  // row by row
  const int64_t width = memory.dtype == COILWORK_INT64 || memory.dtype == COILWORK_FLOAT64 ? 8 : memory.dtype == COILWORK_BOOL ? 1 : 4;
  std::vector<char> room(static_cast<size_t>(tensor.count() * width) + 1);
  CoilworkMemory plain{sizeof plain, room.data(), memory.rank, memory.sizes, nullptr, memory.dtype, COILWORK_CPU, 0};
  Tensor copy(plain);
  copy.copy_from(tensor);
  out << std::hex;
  for (int64_t k = 0; k < tensor.count() * width; ++k) out << " " << (static_cast<unsigned>(room[static_cast<size_t>(k)]) & 255);
  return out.str();
}

static std::string describe(const Value& value) {
  switch (value.kind()) {
    case COILWORK_TENSOR:
      return describe(value.tensor());
    case COILWORK_INTEGER:
      return "integer " + std::to_string(value.integer());
    case COILWORK_REAL:
      return "real " + std::to_string(value.real());
    case COILWORK_TRUTH:
      return value.truth() ? "true" : "false";
    case COILWORK_TEXT:
      return "text " + value.text();
    default:
      return "nothing";
  }
}

static std::string describe(const std::vector<Value>& values) {
  std::string text;
  for (const Value& one : values) text += describe(one) + "\n";
  return text;
}

static Value read_input(const std::string& path, std::string text) {
  const bool transposed = text[0] == 't';
  if (transposed) text = text.substr(1);
  std::vector<int64_t> sizes;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one, ',');) sizes.push_back(std::stoll(one));
  std::ifstream file(path, std::ios::binary);
  auto* data = new std::string(std::istreambuf_iterator<char>(file), {});
  CoilworkMemory memory{sizeof memory, &(*data)[0], static_cast<int64_t>(sizes.size()), sizes.data(), nullptr, COILWORK_FLOAT32, COILWORK_CPU, 0};
  const int64_t strides[] = {1, sizes[0]};
  if (transposed) memory.strides = strides;
  return Tensor(memory, [](void*, void* context) { delete static_cast<std::string*>(context); }, data);
}

struct Words {
  char** at;
  char** end;
  bool done() const { return at == end; }
  std::string next() { return done() ? "" : *at++; }
  std::vector<Value> values() {
    std::vector<Value> made;
    for (std::string word = next(); word != ";" && !word.empty(); word = next())
      made.push_back(inputs.count(word) ? inputs[word] : Value(static_cast<int64_t>(std::stoll(word))));
    return made;
  }
};

static void run_threads(const Model& model, const std::string& entry, const std::vector<Value>& given) {
  const std::string wanted = describe(model.call(entry, given));
  std::atomic<int> differing{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 8; ++k)
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) differing += describe(model.call(entry, given)) != wanted;
    });
  for (std::thread& one : threads) one.join();
  std::cout << "differing " << differing << "\n";
}

static void takes(const Model& model, const std::string& entry) {
  for (size_t k = 0; k < model.variants(entry); ++k)
    for (const coilwork::Input& input : model.inputs(entry, k)) {
      std::cout << k << " " << input.name << " " << input.kind << " " << input.dtype;
      for (const coilwork::Extent& one : input.extents) std::cout << " " << one.low << ".." << one.high << (one.symbol.empty() ? "" : "?");
      std::cout << (input.is_written ? " written" : "") << "\n";
    }
}

static void act(const std::string& torch, const std::string& word, Words& words) {
  coilwork::Options options;
  options.torch_library = torch;
  if (word == "open") {
    const std::string name = words.next();
    models[name] = std::make_unique<Model>(words.next(), options);
    for (const std::string& entry : models[name]->entries()) std::cout << "entry " << entry << "\n";
  } else if (word == "share") {
    const std::string name = words.next();
    options.share = models[words.next()].get();
    models[name] = std::make_unique<Model>(words.next(), options);
  } else if (word == "close") {
    models.erase(words.next());
  } else if (word == "input") {
    const std::string name = words.next(), path = words.next();
    inputs[name] = read_input(path, words.next());
  } else if (word == "call") {
    const std::string name = words.next(), entry = words.next();
    std::cout << describe(models[name]->call(entry, words.values()));
  } else if (word == "threads") {
    const std::string name = words.next(), entry = words.next();
    run_threads(*models[name], entry, words.values());
  } else if (word == "repeat") {
    const int count = std::stoi(words.next());
    const std::string name = words.next(), entry = words.next();
    const std::vector<Value> given = words.values();
    for (int k = 0; k < count; ++k) models[name]->call(entry, given);
    std::cout << "calls " << count << "\n";
  } else if (word == "weights") {
    const std::string name = words.next(), path = words.next();
    models[name]->load_state(path, words.next() == "assign");
  } else if (word == "state") {
    for (const auto& [name, tensor] : models[words.next()]->state()) std::cout << name << " " << describe(tensor) << "\n";
  } else if (word == "takes") {
    const std::string name = words.next();
    takes(*models[name], words.next());
  } else if (word == "python") {
    std::ifstream maps("/proc/self/maps");
    const std::string text(std::istreambuf_iterator<char>(maps), {});
    std::cout << "python " << (text.find("libpython") != std::string::npos || text.find("torch_python") != std::string::npos) << "\n";
  } else {
    throw std::runtime_error("what is " + word + "?");
  }
}

int main(int count, char** given) {
  Words words{given + 2, given + count};
  coilwork::open_torch(given[1]);
  while (!words.done()) {
    char** const began = words.at;
    try {
      const std::string word = words.next();
      act(given[1], word, words);
    } catch (const coilwork::InputError& error) {
      std::cout << "InputError " << error.code() << "\n";
    } catch (const coilwork::TargetError& error) {
      std::cout << "TargetError " << error.code() << "\n";
    } catch (const coilwork::PackageError& error) {
      std::cout << "PackageError " << error.code() << "\n";
    } catch (const coilwork::CallError& error) {
      std::cout << "CallError " << error.what() << "\n";
    } catch (const std::exception& error) {
      std::cout << error.what() << " at " << *began << "\n";
      return 1;
    }
  }
  models.clear();
  inputs.clear();
  return 0;
}
