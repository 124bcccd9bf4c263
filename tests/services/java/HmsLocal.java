import java.net.InetSocketAddress;
import java.sql.SQLException;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TTransportFactory;

/**
 * A Hive metastore on one address, from the Hive classes that Spark brings along.
 *
 * <p>Arguments: host port. The rest stands in hive-site.xml on the class path.
 */
public class HmsLocal {
  private static final String TABLE_EXISTS = "X0Y32"; // Derby's SQL state

  public static void main(String[] args) throws Throwable {
    InetSocketAddress address = new InetSocketAddress(args[0], Integer.parseInt(args[1]));
    HiveConf conf = new HiveConf();
    makeLockTables(conf);

    HiveMetaStore.HMSHandler base = new HiveMetaStore.HMSHandler("hms", conf, false);
    IHMSHandler handler = HiveMetaStore.newRetryingHMSHandler(base, conf);
    TThreadPoolServer.Args server =
        new TThreadPoolServer.Args(new TServerSocket(address))
            .processor(new TSetIpAddressProcessor<>(handler))
            .transportFactory(new TTransportFactory())
            .protocolFactory(new TBinaryProtocol.Factory())
            .minWorkerThreads(5)
            .maxWorkerThreads(200);
    new TThreadPoolServer(server).serve();
  }

  /** Nothing else makes HIVE_LOCKS, and without it Iceberg's commits wait for ever. */
  private static void makeLockTables(HiveConf conf) throws Exception {
    try {
      TxnDbUtil.prepDb(conf);
    } catch (SQLException e) {
      if (!TABLE_EXISTS.equals(e.getSQLState())) {
        throw e;
      }
    }
  }
}
