#!/bin/sh
# Makes a Python environment for each group of peers that get along, under the folder given, and prints the options for
# bench_peers:   python -m benchmarks.feed.bench_peers $(sh benchmarks/peers/environments.sh /tmp/peers)
# torch stays the one of constraints.txt. litdata and mosaicml-streaming ask for torchvision, which they do not need here and
# whose usual wheel does not fit a CPU build of torch: they are installed without it.
set -eu
folder=$1
mkdir -p "$folder"
grep '^torch==' "$(dirname "$0")/../../constraints.txt" > "$folder/torch.txt"
torch=$(cat "$folder/torch.txt")

make() { # make NAME PACKAGES...
  name=$1
  shift
  [ -x "$folder/$name/bin/pip" ] || python3 -m venv "$folder/$name"
  "$folder/$name/bin/pip" install -q --disable-pip-version-check -c "$folder/torch.txt" "$@" >&2
}

make loaders "$torch" numpy==2.3.5 datasets==5.2.0 webdataset==1.0.2 grain==0.2.18 tensordict==0.15.3 scdataset==0.3.0
make lance "$torch" numpy==2.3.5 pylance==14.0.2 lancedb==0.40.0
make litdata --no-deps litdata==0.2.76
make litdata "$torch" numpy==2.3.5 lightning-utilities filelock boto3 requests urllib3 tifffile obstore
make mosaic --no-deps mosaicml-streaming==0.13.0
make mosaic "$torch" 'numpy<2.2' 'transformers<5' 'boto3<2' Brotli 'google-cloud-storage<3.3.0' 'matplotlib<4' 'paramiko<4' \
  'python-snappy<1' 'tqdm<5' 'xxhash<4' 'zstd<2' 'oci<3' 'azure-storage-blob<13' 'azure-storage-file-datalake<13' azure-identity 'catalogue<3'
make gluonts "$torch" 'gluonts[torch]==0.17.0'
make ptf "$torch" pytorch-forecasting==1.8.0
make neuralforecast "$torch" neuralforecast==3.3.0

for pair in datasets:loaders webdataset:loaders grain:loaders tensordict:loaders scdataset:loaders lance:lance litdata:litdata \
  mosaicml:mosaic gluonts:gluonts pytorch_forecasting:ptf neuralforecast:neuralforecast; do
  printf ' --python %s=%s/%s/bin/python' "${pair%%:*}" "$folder" "${pair##*:}"
done
