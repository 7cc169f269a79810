#!/bin/sh
# Turns a plain Debian root into the stand-in for one of NVIDIA's images with CUDA: CUDA's compiler, runtime and NCCL as
# published, stubs in place of every other library of CUDA (see stubs.py), and the framework's CUDA build. Then
# everything that the stand-in without CUDA gets. Debian's EXTERNALLY-MANAGED marker stays, which newer bases have, too.
# install.sh PRODUCT PINNED      PINNED: packages|of|the|constraint|file
set -eu
cuda=/usr/local/cuda-13.0
libraries=/usr/lib/$(uname -m)-linux-gnu

# The wheels of CUDA are unpacked, not installed: in NVIDIA's images they are no packages of Python.
mkdir /standin/unpacked
for wheel in /standin/wheels/nvidia_*.whl; do
    python3 -m zipfile -e "${wheel}" /standin/unpacked
    rm "${wheel}"
done
mv /standin/unpacked/nvidia/cu13 "${cuda}"
chmod -R a+x "${cuda}/bin" "${cuda}/nvvm/bin"
ln -s "${cuda}" /usr/local/cuda
ln -s lib "${cuda}/lib64"
mkdir -p "${cuda}/targets/x86_64-linux"
ln -s ../../lib ../../include "${cuda}/targets/x86_64-linux/"
ln -s libcudart.so.13 "${cuda}/lib/libcudart.so"
echo /usr/local/cuda/targets/x86_64-linux/lib > /etc/ld.so.conf.d/000_cuda.conf
mv /standin/unpacked/nvidia/nccl/include/* /usr/include/
mv /standin/unpacked/nvidia/nccl/lib/libnccl.so.2 "${libraries}/"
ln -s libnccl.so.2 "${libraries}/libnccl.so"

python3 -m pip install --no-index --no-deps --no-cache-dir --quiet --root-user-action=ignore --break-system-packages \
    /standin/wheels/*.whl
site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
# torch looks here first, and there must be one NCCL.
mkdir -p "${site}/nvidia/nccl/lib"
ln -s "${libraries}/libnccl.so.2" "${site}/nvidia/nccl/lib/"
python3 /standin/cuda/stubs.py "${cuda}/lib" "${site}"/torch/lib/*.so
ldconfig

# The other installer removes the marker.
for marker in /usr/lib/python3*/EXTERNALLY-MANAGED; do
    cp "${marker}" "${marker}.kept"
done
sh /standin/install.sh "$1" "$2"
for kept in /usr/lib/python3*/EXTERNALLY-MANAGED.kept; do
    mv "${kept}" "${kept%.kept}"
done
