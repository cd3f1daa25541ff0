# The two commands of the README, each a stage: docker build --target quickstart .   docker build --target tests .
FROM debian:12 AS quickstart
COPY . /lockstep
WORKDIR /lockstep
RUN ./examples/quickstart.sh

FROM quickstart AS tests
RUN ./tests/run.sh
