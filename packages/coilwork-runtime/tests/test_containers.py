"""The native executor's own containers, compiled with the address sanitizer: elements are made and destroyed
once each.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from coilwork_runtime.executor.native_program import FOLDER

PROGRAM = r"""
#include <stdio.h>
#include <utility>

#include "containers/owned.hpp"
#include "containers/text.hpp"

using coilwork::List;
using coilwork::Owned;
using coilwork::Text;

static int alive = 0;
struct Counted {
  int number;
  explicit Counted(int number) : number(number) { ++alive; }
  ~Counted() { --alive; }
};
struct Both {
  Owned<Counted> owned;
  Text text;
};
#define EXPECT(what) \
  if (!(what)) return printf("line %d: %s\n", __LINE__, #what), 1

static int lists() {
  List<Owned<Counted>> list;
  for (int k = 0; k < 100; ++k) list.push_back(Owned<Counted>(new Counted(k)));
  EXPECT(list.size() == 100 && alive == 100 && list[37]->number == 37 && list.back()->number == 99);
  list.erase(37);
  EXPECT(list.size() == 99 && alive == 99 && list[36]->number == 36 && list[37]->number == 38);
  EXPECT(list.insert(0, Owned<Counted>(new Counted(-1)))->number == -1);
  EXPECT(list[0]->number == -1 && list[1]->number == 0 && list.size() == 100);
  EXPECT(list.insert(100, Owned<Counted>(new Counted(100)))->number == 100 && list.back()->number == 100);
  list.emplace_back(new Counted(101));
  list.pop_back();
  list.resize(50);
  EXPECT(alive == 50 && list.back()->number == 49 - 1 + (48 >= 37));
  list.resize(60);
  EXPECT(!list[59] && list.size() == 60);
  List<Owned<Counted>> other(std::move(list));
  EXPECT(other.size() == 60 && list.empty() && list.data() == nullptr);
  list.push_back(nullptr);
  list = std::move(other);
  EXPECT(list.size() == 60 && list[1]->number == 0);
  list.clear();
  EXPECT(alive == 0 && list.empty());
  return 0;
}

static int numbers() {
  List<unsigned> list(3);
  EXPECT(list[0] == 0 && list[2] == 0);
  const unsigned more[] = {4, 5};
  list.append(more, more + 2);
  list.append(more, more);
  unsigned sum = 0;
  for (unsigned number : list) sum += number;
  EXPECT(sum == 9 && list.size() == 5);
  List<unsigned> part(list.begin() + 3, list.end());
  part.swap(list);
  EXPECT(part.size() == 5 && list.size() == 2 && list[1] == 5);
  try {
    list.reserve(static_cast<size_t>(-1) / 2);
    return 1;
  } catch (const std::bad_alloc&) {
  }
  EXPECT(list[1] == 5);
  return 0;
}

static int texts() {
  Text empty, word("cuda"), cut("cuda:1", 4);
  EXPECT(empty == "" && empty.size() == 0 && word.size() == 4 && cut == "cuda");
  empty.append(word);
  empty.append(Text(":1"));
  EXPECT(empty == "cuda:1" && empty.size() == 6);
  EXPECT(Text("a\0b", 3).size() == 3);
  return 0;
}

static int owners() {
  List<Both> list;
  for (int k = 0; k < 20; ++k) list.push_back({Owned<Counted>(new Counted(k)),
      Text("longer than any buffer inside of it")});
  Owned<Counted> taken = std::move(list[3].owned);
  EXPECT(taken->number == 3 && !list[3].owned && alive == 20);
  taken = Owned<Counted>(new Counted(30));
  EXPECT(alive == 20);
  delete taken.release();
  EXPECT(alive == 19 && !taken);
  return 0;
}

int main() { return lists() || numbers() || texts() || owners() || alive != 0; }
"""


def test_elements_are_made_and_destroyed_once(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    (tmp_path / "program.cpp").write_text(PROGRAM)
    command = [
        compiler,
        "-std=c++17",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{FOLDER}",
        "program.cpp",
        "-o",
        "program",
    ]
    sanitizers = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-static-libasan",
        "-static-libubsan",
    ]
    built = subprocess.run([*command, *sanitizers], cwd=tmp_path, capture_output=True, text=True, check=False)
    if built.returncode and "cannot find -l" in built.stderr:  # a compiler without the sanitizers' libraries
        built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    # an allocation that cannot be is no error here
    environment = {"ASAN_OPTIONS": "allocator_may_return_null=1"}
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
