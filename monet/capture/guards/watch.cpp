// Whether containers of Python hold what they held: compared by address, entry by entry, without running any of
// Python's code. The functions used are of Python's stable interface and declared here, so that no header is needed.
// Called with the interpreter lock (ctypes.PyDLL).

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {
int PyDict_Next(void* dict, std::ptrdiff_t* position, void** key, void** value);
std::ptrdiff_t PyDict_Size(void* dict);
void* PyDict_GetItemWithError(void* dict, void* key);
std::ptrdiff_t PyList_Size(void* list);
void* PyList_GetItem(void* list, std::ptrdiff_t index);
std::ptrdiff_t PySet_Size(void* set);
int PySet_Contains(void* set, void* member);
void* PyObject_Type(void* object);
void* PyObject_GetAttr(void* object, void* name);
void PyErr_Clear();
void Py_DecRef(void* object);
}

namespace {

enum Kind : int64_t { DICT = 0, LIST = 1, TYPE = 2, LOOKUP = 3, SET = 4, ATTRIBUTE = 5 };

// items: of a dict keys and values in turn (a value of null may be any), of a list its items, of an object its type,
// of a lookup, or of an attribute that is a function's or in a slot, a key and its value (null: the key is not there).
// The caller keeps all of them alive.
struct Entry {
  Kind kind;
  void* container;
  std::vector<void*> items;
  uint64_t version = 0;  // of a dict that was found the same
};

#ifdef MONET_DICT_VERSIONS
// Python 3.11 gives a dictionary another number at each change (PEP 509; newer versions of Python do not): as long as
// the number is the same, nothing needs to be compared.
struct Dict {
  std::ptrdiff_t references;
  void* type;
  std::ptrdiff_t size;
  uint64_t version;
};
uint64_t version_of(void* dict) { return static_cast<Dict*>(dict)->version; }
#else
uint64_t version_of(void*) { return 0; }
#endif

bool is_same(Entry& entry) {
  const auto& items = entry.items;
  switch (entry.kind) {
    case DICT: {
      const uint64_t version = version_of(entry.container);
      if (version != 0 && version == entry.version) return true;
      if (PyDict_Size(entry.container) * 2 != static_cast<std::ptrdiff_t>(items.size())) return false;
      std::ptrdiff_t position = 0;
      void *key, *value;
      void* const* at = items.data();
      while (PyDict_Next(entry.container, &position, &key, &value)) {
        if (key != at[0] || (at[1] != nullptr && value != at[1])) return false;
        at += 2;
      }
      entry.version = version;
      return true;
    }
    case LIST: {
      const auto size = static_cast<std::ptrdiff_t>(items.size());
      if (PyList_Size(entry.container) != size) return false;
      for (std::ptrdiff_t i = 0; i < size; ++i) {
        if (PyList_GetItem(entry.container, i) != items[i]) return false;
      }
      return true;
    }
    case TYPE: {
      void* type = PyObject_Type(entry.container);
      Py_DecRef(type);  // the object still has it
      return type == items[0];
    }
    case SET: {
      if (PySet_Size(entry.container) != static_cast<std::ptrdiff_t>(items.size())) return false;
      for (void* item : items) {
        if (PySet_Contains(entry.container, item) != 1) return false;
      }
      return true;
    }
    case ATTRIBUTE: {
      void* value = PyObject_GetAttr(entry.container, items[0]);
      if (value == nullptr) {
        PyErr_Clear();
      } else {
        Py_DecRef(value);  // the object still has it
      }
      return value == items[1];
    }
    default:
      return PyDict_GetItemWithError(entry.container, items[0]) == items[1];
  }
}

}  // namespace

extern "C" {

void* monet_watch_new() { return new std::vector<Entry>(); }

void monet_watch_delete(void* watch) { delete static_cast<std::vector<Entry>*>(watch); }

// Watch one more container, or, for an index that is there, what it holds now.
void monet_watch_set(void* watch, int64_t index, int64_t kind, void* container, void* const* items, int64_t count) {
  auto& entries = *static_cast<std::vector<Entry>*>(watch);
  Entry entry{static_cast<Kind>(kind), container, std::vector<void*>(items, items + count)};
  if (index == static_cast<int64_t>(entries.size())) {
    entries.push_back(std::move(entry));
  } else {
    entries[index] = std::move(entry);
  }
}

// The first container from this one on that holds something else than recorded; -1 for none.
int64_t monet_watch_changed(void* watch, int64_t begin) {
  auto& entries = *static_cast<std::vector<Entry>*>(watch);
  for (auto i = static_cast<size_t>(begin); i < entries.size(); ++i) {
    if (!is_same(entries[i])) return static_cast<int64_t>(i);
  }
  return -1;
}
}
