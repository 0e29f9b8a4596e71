# Native modules that do not fit what loads them. Sourced by the cases: native NAME, in the job's folder.
# Each is a real shared library; the words in the log are the dynamic loader's, the compiler's or numpy's own.
python=$1
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
torch_include=$("$python" -c 'import torch, os; print(os.path.join(os.path.dirname(torch.__file__), "include"))')
torch_lib=$("$python" -c 'import torch, os; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')
module='#include <Python.h>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, NAME_TEXT, 0, -1, 0, 0, 0, 0, 0};
extern "C" PyObject* INIT(void) { return PyModule_Create(&def); }'

package() {  # package PACKAGE EXTENSION: a Python package that imports its extension, as users' libraries do
  mkdir -p "site/$1"
  echo "from $1.interface import run" > "site/$1/__init__.py"
  printf 'import torch\n\nimport %s as backend\n\n\ndef run(x):\n    return backend.run(x)\n' "$2" > "site/$1/interface.py"
}
extension() {  # extension NAME SOURCE FLAGS...
  name=$1; source=$2; shift 2
  printf '%s\n%s\n' "$module" "$source" > "$name.cpp"
  g++ -shared -fPIC -O0 "-DNAME_TEXT=\"$name\"" "-DINIT=PyInit_$name" -I"$include" "$name.cpp" "$@" -o "site/$name.so"
}
stub() {  # stub LIBRARY SYMBOL VERSION: a library for the linker only, so that the extension asks for that version
  echo "int $2(void) { return 0; }" > stub.c
  if [ -n "$3" ]; then echo "$3 { global: $2; };" > stub.map; set -- "$1" "$2" "$3" -Wl,--version-script=stub.map; fi
  gcc -shared -fPIC stub.c -Wl,-soname,"$1" ${4:+"$4"} -o "./$1"
}
native() {
  mkdir -p site
  case $1 in
    cxx11-abi)  # the other string ABI than this torch: flash-attn's cxx11abiFALSE wheel under an ABI 1 torch, or the reverse
      other=$("$python" -c 'import torch; print(0 if torch.compiled_with_cxx11_abi() else 1)')
      package flash_attn flash_attn_2_cuda
      extension flash_attn_2_cuda '#include <c10/util/Exception.h>
void check(int n, std::string s) { TORCH_CHECK(n > 0, "bad ", s); }' -D_GLIBCXX_USE_CXX11_ABI="$other" \
        -I"$torch_include" -L"$torch_lib" -lc10 -Wl,--unresolved-symbols=ignore-all ;;
    torch-symbol)  # a function of c10 that no released torch has under this name any more
      package causal_conv1d causal_conv1d_cuda
      extension causal_conv1d_cuda 'namespace c10 { struct SymInt; namespace cuda { int current_device(); } 
namespace impl { void reportToTensorTypeError(); } }
void use() { c10::impl::reportToTensorTypeError(); }' -L"$torch_lib" -lc10 -Wl,--unresolved-symbols=ignore-all ;;
    libcudart)
      package apex amp_C; stub libcudart.so.11.0 cudaGetDevice
      extension amp_C 'extern "C" int cudaGetDevice(); int use() { return cudaGetDevice(); }' ./libcudart.so.11.0 ;;
    libcuda)
      package vllm vllm_C; stub libcuda.so.1 cuInit
      extension vllm_C 'extern "C" int cuInit(); int use() { return cuInit(); }' ./libcuda.so.1 ;;
    glibc)
      package grouped_gemm grouped_gemm_backend; stub libc.so.6 __isoc23_strtol GLIBC_2.38
      extension grouped_gemm_backend 'extern "C" int __isoc23_strtol(); int use() { return __isoc23_strtol(); }' ./libc.so.6 ;;
    glibcxx)
      package fused_layer_norm fused_layer_norm_cuda; stub libstdc++.so.6 lab_symbol GLIBCXX_3.4.32
      extension fused_layer_norm_cuda 'extern "C" int lab_symbol(); int use() { return lab_symbol(); }' ./libstdc++.so.6 ;;
    numpy1)
      "$python" -m pip install -q --no-deps --target numpy1 'numpy==1.26.4'
      package helpers_index helpers_cpp
      cat > helpers_cpp.cpp <<'C'
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "helpers_cpp", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_helpers_cpp(void) { import_array(); return PyModule_Create(&def); }
C
      g++ -shared -fPIC -I"$include" -Inumpy1/numpy/core/include helpers_cpp.cpp -o site/helpers_cpp.so ;;
  esac
}
