# The main job in a container: two processes train one model on Fashion-MNIST. examples/kubernetes runs it with a pod per process.
#
#   docker build -t lockstep .
#   docker run --rm lockstep
FROM debian:12
WORKDIR /src
COPY . .
RUN ./bazelw build -c opt //examples/fashion_mnist:train //launch:lockstep-run \
    && install bazel-bin/examples/fashion_mnist/train bazel-bin/launch/lockstep-run /usr/local/bin \
    && ./bazelw clean --expunge \
    && rm -rf /root/.cache /var/lib/apt/lists/*
CMD ["train"]
